// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "extract:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 3 {
		return errors.New("usage: extract DESCRIPTION.json LIST.txt OUT.json")
	}
	raw, err := os.ReadFile(args[0])
	if err != nil {
		return fmt.Errorf("read description: %w", err)
	}
	var doc map[string]any
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("parse %s: %w", args[0], err)
	}
	list, err := os.ReadFile(args[1])
	if err != nil {
		return fmt.Errorf("read list of paths: %w", err)
	}
	out, err := extract(doc, list)
	if err != nil {
		return err
	}
	if err := os.WriteFile(args[2], out, 0o600); err != nil {
		return fmt.Errorf("write extract: %w", err)
	}
	return nil
}

// extract returns the reduced description as JSON with sorted keys.
func extract(doc map[string]any, list []byte) ([]byte, error) {
	correctInstallations(doc)
	paths, hooks := map[string]any{}, map[string]any{}
	lines := bufio.NewScanner(bytes.NewReader(list))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		words := strings.Fields(line)
		if words[0] == "webhook" {
			if err := keep(doc["x-webhooks"], hooks, words[1], []string{"post"}); err != nil {
				return nil, err
			}
			continue
		}
		if err := keep(doc["paths"], paths, words[0], words[1:]); err != nil {
			return nil, err
		}
	}
	out := map[string]any{
		"openapi": doc["openapi"], "info": doc["info"], "paths": paths, "x-webhooks": hooks,
	}
	components := map[string]any{}
	collect(doc, paths, components)
	collect(doc, hooks, components)
	out["components"] = components
	text, err := json.MarshalIndent(out, "", " ")
	if err != nil {
		return nil, fmt.Errorf("encode extract: %w", err)
	}
	return append(text, '\n'), nil
}

// correctInstallations fixes the one place where the description contradicts GitHub and itself. In the list of
// installations, the description requires each account to be a user and an enterprise at the same
// time (allOf). In apps/get-installation, it allows either (anyOf).
func correctInstallations(doc map[string]any) {
	node := asObject(doc["paths"])
	for _, key := range []string{"/app/installations", "get", "responses", "200", "content", "application/json", "schema"} {
		node = asObject(node[key])
	}
	if node != nil {
		node["items"] = map[string]any{"$ref": "#/components/schemas/installation"}
	}
}

// keep copies the named methods of one path, and the parameters that all methods of the path share.
func keep(from any, to map[string]any, path string, methods []string) error {
	item := asObject(asObject(from)[path])
	kept := map[string]any{}
	for _, method := range methods {
		op, ok := item[method]
		if !ok {
			return fmt.Errorf("find %s %q: the description does not have it", method, path)
		}
		kept[method] = prune(op)
	}
	if parameters, ok := item["parameters"]; ok {
		kept["parameters"] = prune(parameters)
	}
	to[path] = kept
	return nil
}

// collect copies every component that node refers to, directly or indirectly.
func collect(doc map[string]any, node any, components map[string]any) {
	switch v := node.(type) {
	case []any:
		for _, item := range v {
			collect(doc, item, components)
		}
	case map[string]any:
		if ref, ok := v["$ref"].(string); ok {
			collectRef(doc, ref, components)
		}
		for _, item := range v {
			collect(doc, item, components)
		}
	}
}

func collectRef(doc map[string]any, ref string, components map[string]any) {
	parts := strings.Split(ref, "/") // #/components/KIND/NAME
	if len(parts) != 4 {
		return
	}
	kind, name := parts[2], parts[3]
	bucket, ok := components[kind].(map[string]any)
	if !ok {
		bucket = map[string]any{}
		components[kind] = bucket
	}
	if _, isSeen := bucket[name]; isSeen {
		return
	}
	item := prune(asObject(asObject(doc["components"])[kind])[name])
	bucket[name] = item
	collect(doc, item, components)
}

// prune deletes what the validation does not use: examples, links and vendor extensions. It keeps
// every property, whatever its name is.
func prune(node any) any {
	switch v := node.(type) {
	case []any:
		for i := range v {
			v[i] = prune(v[i])
		}
	case map[string]any:
		pruneObject(v)
	}
	return node
}

func pruneObject(v map[string]any) {
	for key, item := range v {
		if key == "properties" {
			for _, property := range asObject(item) {
				prune(property)
			}
			continue
		}
		switch {
		case key == "example" || key == "examples" || key == "externalDocs",
			strings.HasPrefix(key, "x-"):
			delete(v, key)
		default:
			prune(item)
		}
	}
}

func asObject(v any) map[string]any {
	m, _ := v.(map[string]any)
	return m
}
