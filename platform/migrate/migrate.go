// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

const kindAdapter = "file of an adapter"

// Checks return the problems of converted configurations: what the program that reads them would refuse.
type Checks struct {
	API, Sentinel func(file string, text []byte) strictyaml.Problems
}

// File converts a file, whose kind it finds from its keys. It does not change the file. It returns an error if the
// file cannot be read or parsed.
func File(name string, checks Checks) (*Result, error) {
	text, err := strictyaml.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}

	doc, err := strictyaml.Parse(name, text)
	if err != nil {
		return nil, err
	}

	var keys map[string]any
	if err := doc.Decode(&keys); err != nil {
		return nil, err
	}

	check := checkNothing
	c := &conversion{doc: doc, source: keys, out: map[string]any{}, result: &Result{}}

	switch {
	case has(keys, "apiVersion") && has(keys, "kind"):
		c.result.Kind = "Kubernetes object"
		c.addProblem(strictyaml.Path{"kind"}, "a Kubernetes object is no configuration",
			"a manifest that a task file names with ref stays as it is; convert a file in a ConfigMap as a file of its own")
	case isHelm(keys):
		c.convertHelm()
	case has(keys, "server") || has(keys, "database") || has(keys, "entities"):
		c.result.Kind = "configuration of the API"
		check = checks.API
		c.convertAPI()
	case has(keys, "resource_type") || has(keys, "sentinel") || has(keys, "message_decision"):
		c.result.Kind = "configuration of Sentinel"
		check = checks.Sentinel
		c.convertSentinel()
	case has(keys, "broker"):
		c.result.Kind = "configuration of the broker"
		c.convertBroker()
	case has(keys, "adapter") || has(keys, "clients"):
		return convertDeployment(name, text, keys), nil
	default:
		return convertTaskFile(name, text)
	}

	result, err := c.finish()
	if err != nil {
		return nil, err
	}

	// Problems of the source come first: they may be the cause of the others.
	if len(result.Left) == 0 {
		result.Left = check("converted file", result.Text)
	}

	return result, nil
}

func checkNothing(string, []byte) strictyaml.Problems { return nil }

func has(keys map[string]any, key string) bool { return keys[key] != nil }
