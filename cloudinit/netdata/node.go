// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Limits of the input.
const (
	maxData  = 1 << 20
	maxDepth = 64
	// maxValues is the maximum number of values before aliases are expanded. An interface has about ten
	// values.
	maxValues = 4000
	maxNodes  = 2 * maxValues
)

// Tags of YAML.
const (
	tagString = "!!str"
	tagNull   = "!!null"
	tagMap    = "!!map"
	tagList   = "!!seq"
)

// decodeTree decodes JSON or YAML to a tree. It expands aliases and merge keys, and returns an error for
// duplicate keys. It keeps the order of keys, comments, and the notation of numbers.
func decodeTree(data []byte) (root *yaml.Node, isJSON bool, err error) {
	if len(data) > maxData {
		return nil, false, fmt.Errorf("network data: has %d bytes, more than the limit of %d", len(data), maxData)
	}

	if err := bounds.CheckYAML(data, maxValues); err != nil {
		return nil, false, fmt.Errorf("network data: %w", err)
	}

	isJSON = json.Valid(data)
	if isJSON {
		root, err = decodeJSON(data)
	} else {
		root, err = strictyaml.ParseTree(data, strictyaml.TreeOptions{MaxNodes: maxNodes, MaxBytes: maxData})
	}

	switch {
	case err != nil && isJSON, errors.Is(err, bounds.ErrTooLarge):
		return nil, false, fmt.Errorf("network data: %w", err)
	case err != nil:
		return nil, false, fmt.Errorf("network data: is neither JSON nor YAML: %w", strictyaml.First(err))
	case root.Kind != yaml.MappingNode:
		return nil, false, fmt.Errorf("network data line %d: must be a mapping (key: value)", root.Line)
	case !isJSON && len(root.Content) == 0:
		return nil, false, errors.New("network data: is empty")
	default:
		return root, isJSON, nil
	}
}

func decodeJSON(data []byte) (*yaml.Node, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()

	return decodeJSONValue(dec, 0)
}

func decodeJSONValue(dec *json.Decoder, depth int) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil || depth > maxDepth {
		return nil, fmt.Errorf("is not valid JSON, or is more than %d levels deep: %w", maxDepth, err)
	}

	switch t := token.(type) {
	case json.Delim:
		if t == '[' {
			return decodeJSONList(dec, depth)
		}

		return decodeJSONMapping(dec, depth)
	case string:
		return newText(t), nil
	case json.Number:
		tag := "!!int"
		if strings.ContainsAny(t.String(), ".eE") {
			tag = "!!float"
		}

		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tag, Value: t.String()}, nil
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(t)}, nil
	default:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: tagNull, Value: "null"}, nil
	}
}

func decodeJSONList(dec *json.Decoder, depth int) (*yaml.Node, error) {
	out := newList()

	for dec.More() {
		v, err := decodeJSONValue(dec, depth+1)
		if err != nil {
			return nil, err
		}

		out.Content = append(out.Content, v)
	}

	_, err := dec.Token()

	return out, err
}

func decodeJSONMapping(dec *json.Decoder, depth int) (*yaml.Node, error) {
	out := newMapping()
	seen := map[string]bool{}

	for dec.More() {
		key, err := decodeJSONValue(dec, depth+1)
		if err != nil {
			return nil, err
		}

		if seen[key.Value] {
			return nil, fmt.Errorf("the key %q occurs twice", key.Value)
		}

		seen[key.Value] = true

		v, err := decodeJSONValue(dec, depth+1)
		if err != nil {
			return nil, err
		}

		out.Content = append(out.Content, key, v)
	}

	_, err := dec.Token()

	return out, err
}

// encodeJSON encodes a tree as JSON with an indent of two spaces.
func encodeJSON(root *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	if err := writeJSON(&b, root); err != nil {
		return nil, err
	}

	var out bytes.Buffer
	if err := json.Indent(&out, b.Bytes(), "", "  "); err != nil {
		return nil, fmt.Errorf("encode network data as JSON: %w", err)
	}

	return append(out.Bytes(), '\n'), nil
}

func writeJSON(b *bytes.Buffer, n *yaml.Node) error {
	switch n.Kind {
	case yaml.SequenceNode:
		b.WriteByte('[')

		for i, c := range n.Content {
			if i > 0 {
				b.WriteByte(',')
			}

			if err := writeJSON(b, c); err != nil {
				return err
			}
		}

		b.WriteByte(']')
	case yaml.MappingNode:
		b.WriteByte('{')

		for i := 0; i+1 < len(n.Content); i += 2 {
			if i > 0 {
				b.WriteByte(',')
			}

			writeJSONString(b, n.Content[i].Value)
			b.WriteByte(':')

			if err := writeJSON(b, n.Content[i+1]); err != nil {
				return err
			}
		}

		b.WriteByte('}')
	default:
		return writeJSONScalar(b, n)
	}

	return nil
}

// writeJSONScalar writes one value. It keeps the notation of a number if JSON allows it.
func writeJSONScalar(b *bytes.Buffer, n *yaml.Node) error {
	switch n.ShortTag() {
	case tagNull:
		b.WriteString("null")
	case "!!bool", "!!int", "!!float":
		if json.Valid([]byte(n.Value)) {
			b.WriteString(n.Value)

			return nil
		}

		var v any
		if err := n.Decode(&v); err != nil {
			return fmt.Errorf("network data line %d: %q: %w", n.Line, n.Value, err)
		}

		out, err := json.Marshal(v)
		if err != nil {
			return fmt.Errorf("network data line %d: %q has no form in JSON: write it as a string", n.Line, n.Value)
		}

		b.Write(out)
	default:
		writeJSONString(b, n.Value)
	}

	return nil
}

func writeJSONString(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) //nolint:errchkjson // encoding a string never fails

	b.Truncate(b.Len() - 1) // removes the newline
}

// newText returns a node with a string. The library quotes strings to which a YAML 1.1 parser, such as
// cloud-init's, would give another type. For example, 52:54:00:12:34:56 is a number in YAML 1.1.
func newText(s string) *yaml.Node {
	n := &yaml.Node{}
	if err := n.Encode(s); err != nil || n.Kind != yaml.ScalarNode || n.Value != s || strings.Contains(s, "\n") {
		n = &yaml.Node{Kind: yaml.ScalarNode, Value: s, Style: yaml.DoubleQuotedStyle}
	}

	n.Tag = tagString

	return n
}

func newNumber(i int) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(i)}
}

func newBoolean(b bool) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(b)}
}

func newList(items ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Tag: tagList, Content: items}
}

func newMapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: tagMap} }

func newTexts[T fmt.Stringer](items []T) *yaml.Node {
	out := newList()
	for _, i := range items {
		out.Content = append(out.Content, newText(i.String()))
	}

	return out
}

// addKey adds a key at the end of a mapping.
func addKey(m *yaml.Node, key string, value *yaml.Node) {
	m.Content = append(m.Content, newText(key), value)
}

// keys returns the keys of a mapping in their order.
func keys(m *yaml.Node) []string {
	var out []string
	for i := 0; i+1 < len(m.Content); i += 2 {
		out = append(out, m.Content[i].Value)
	}

	return slices.Clip(out)
}
