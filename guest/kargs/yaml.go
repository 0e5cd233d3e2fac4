// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Bounds of what is read.
const (
	maxData  = 1 << 20
	maxDepth = 32
)

// kind of a value.
type kind int

const (
	scalar kind = iota
	sequence
	mapping
)

// value is one value of JSON or YAML. Mappings keep the order of their keys.
type value struct {
	kind   kind
	line   int
	text   string
	quoted bool // a text, whatever it looks like
	items  []*value
	keys   []string // of a mapping, beside items
}

// null says whether a value is not there.
func (v *value) null() bool {
	return v == nil || v.kind == scalar && !v.quoted &&
		(v.text == "" || v.text == "~" || v.text == "null" || v.text == "Null" || v.text == "NULL")
}

// get finds a key's value; nil if there is none or it is null.
func (v *value) get(key string) *value {
	if v == nil || v.kind != mapping {
		return nil
	}

	for i, k := range v.keys {
		if k == key && !v.items[i].null() {
			return v.items[i]
		}
	}

	return nil
}

// parse reads one document of YAML, which JSON is a part of. What network data has no use for
// is an error: aliases, tags, block texts, and keys that are not texts or are there twice.
func parse(data []byte) (*value, error) {
	if len(data) > maxData {
		return nil, fmt.Errorf("%d bytes, at most %d are read", len(data), maxData)
	}

	decoder := yaml.NewDecoder(bytes.NewReader(data))

	var first, second yaml.Node

	switch err := decoder.Decode(&first); {
	case errors.Is(err, io.EOF):
		return &value{}, nil
	case err != nil:
		return nil, err
	}

	if err := decoder.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.Join(err, fmt.Errorf("line %d: more than one document is not read", second.Line))
	}

	return convert(first.Content[0], 0)
}

// convert makes our value of the library's.
func convert(n *yaml.Node, depth int) (*value, error) {
	const odd = yaml.TaggedStyle | yaml.LiteralStyle | yaml.FoldedStyle

	switch {
	case depth > maxDepth:
		return nil, fmt.Errorf("line %d: is more than %d levels deep", n.Line, maxDepth)
	case n.Kind == yaml.AliasNode || n.Anchor != "" || n.Style&odd != 0:
		return nil, fmt.Errorf("line %d: anchors, aliases, tags and block texts are not read", n.Line)
	case n.Kind == yaml.ScalarNode:
		return &value{line: n.Line, text: n.Value, quoted: n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0}, nil
	case n.Kind == yaml.SequenceNode:
		items, err := convertAll(n.Content, depth+1)

		return &value{kind: sequence, line: n.Line, items: items}, err
	}

	v := &value{kind: mapping, line: n.Line}

	// Keys and values take turns.
	var values []*yaml.Node

	seen := map[string]bool{}

	for pair := range slices.Chunk(n.Content, 2) {
		key := pair[0]

		switch {
		case key.Kind != yaml.ScalarNode || key.Tag == "!!merge" || key.Anchor != "" || key.Style&odd != 0:
			return nil, fmt.Errorf("line %d: a key must be a text", key.Line)
		case seen[key.Value]:
			return nil, fmt.Errorf("line %d: the key %q is there twice", key.Line, key.Value)
		}

		seen[key.Value] = true
		v.keys, values = append(v.keys, key.Value), append(values, pair[1])
	}

	var err error

	v.items, err = convertAll(values, depth+1)

	return v, err
}

// convertAll converts what is in a list or a mapping.
func convertAll(nodes []*yaml.Node, depth int) ([]*value, error) {
	var out []*value

	for _, n := range nodes {
		item, err := convert(n, depth)
		if err != nil {
			return nil, err
		}

		out = append(out, item)
	}

	return out, nil
}
