// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds the file; a ConfigMap can't be larger.
const maxFile = 1 << 20

// readFile reads the YAML file; without a path there is nothing to read.
func (s *Spec[T]) readFile(schema *schema, path string) (layer, error) {
	out := newLayer()
	if path == "" {
		return out, nil
	}

	document, err := decodeFile(path)
	if err != nil {
		return out, fmt.Errorf("file %s: %w", path, err)
	}

	errs := []error{
		identity(document, keyAPIVersion, s.APIVersion),
		identity(document, keyKind, s.Kind),
		out.take(schema, document, "", "file "+path),
	}

	if err := errors.Join(errs...); err != nil {
		return out, fmt.Errorf("file %s: %w", path, err)
	}

	return out, nil
}

// decodeFile reads the one document of a YAML file.
func decodeFile(path string) (map[string]any, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open: %w", errors.Unwrap(err))
	}
	defer file.Close() //nolint:errcheck // it was only read

	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read: %w", err)
	}

	if len(data) > maxFile {
		return nil, fmt.Errorf("larger than %d bytes", maxFile)
	}

	return decode(data)
}

func decode(data []byte) (map[string]any, error) {
	var document map[string]any

	decoder := yaml.NewDecoder(bytes.NewReader(data))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("parse YAML: %w", err)
	}

	var second any
	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one YAML document: keep one")
	}

	return document, nil
}

// identity checks apiVersion or kind.
func identity(document map[string]any, key, want string) error {
	got, ok := document[key]

	switch {
	case !ok:
		return fmt.Errorf("%s is missing: want %s", key, want)
	case got != want:
		return fmt.Errorf("%s is %v: want %s", key, got, want)
	default:
		return nil
	}
}

// take takes the keys of a YAML map; keys without a value are not set.
func (l layer) take(schema *schema, document map[string]any, prefix, source string) error {
	var errs []error

	for _, name := range sortedKeys(document) {
		key, value := prefix+name, document[name]
		if key == keyAPIVersion || key == keyKind || value == nil {
			continue
		}

		if known, ok := schema.find(key); ok {
			parsed, err := known.fromYAML(value)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", key, err))
			}

			l.values[key], l.source[key] = parsed, source

			continue
		}

		nested, isMap := value.(map[string]any)

		switch {
		case !slices.Contains(schema.groups, key):
			errs = append(errs, fmt.Errorf("unknown key %s%s", key, nearest(key, schema.keys())))
		case !isMap:
			errs = append(errs, fmt.Errorf("%s: %v: want keys below it", key, value))
		default:
			errs = append(errs, l.take(schema, nested, key+".", source))
		}
	}

	return errors.Join(errs...)
}

// serviceLink matches the variables that Kubernetes makes for each Service of a
// namespace. One named hyperfleet-x gets variables that look like ours.
var serviceLink = regexp.MustCompile(
	`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// readEnv reads the variables.
func (s *Spec[T]) readEnv(schema *schema, environ []string) (layer, error) {
	out := newLayer()
	byName := map[string]leaf{}
	known := []string{EnvFile}

	for _, l := range schema.leaves {
		byName[l.env()] = l
		known = append(known, l.env())
	}

	var errs []error

	for _, entry := range slices.Sorted(slices.Values(environ)) {
		name, text, _ := strings.Cut(entry, "=")

		key, isAlias := s.Aliases[name]
		l, isKey := byName[name]

		if isAlias {
			l, isKey = schema.find(key)
		}

		switch {
		case isAlias && set(environ, l.env()):
		case isKey:
			value, err := l.fromText(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("variable %s: %w", name, err))
			}

			out.values[l.key], out.source[l.key] = value, "env "+name
		case !strings.HasPrefix(name, EnvPrefix), name == EnvFile, slices.Contains(s.OtherEnv, name):
		case serviceLink.MatchString(name):
		default:
			errs = append(errs, fmt.Errorf("unknown variable %s%s", name, nearest(name, known)))
		}
	}

	return out, errors.Join(errs...)
}

// set says whether the environment has a variable.
func set(environ []string, name string) bool {
	return slices.ContainsFunc(environ, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
}

func (s *schema) keys() []string {
	keys := slices.Clone(s.groups)
	for _, l := range s.leaves {
		keys = append(keys, l.key)
	}

	return append(keys, keyAPIVersion, keyKind)
}

func sortedKeys(m map[string]any) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}

	slices.Sort(keys)

	return keys
}
