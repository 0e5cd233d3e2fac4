// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

// Bounds of what is read.
const (
	maxData  = 1 << 20
	maxDepth = 64
	// maxValues is how many there may be before aliases are written out: an interface has some ten.
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

// decode reads JSON or YAML into a tree without aliases, merge keys and double keys.
// The order of keys, comments, and numbers as they were written stay.
func decode(data []byte) (root *yaml.Node, isJSON bool, err error) {
	if len(data) > maxData {
		return nil, false, fmt.Errorf("network data: %d bytes, at most %d are read", len(data), maxData)
	}

	if err := inputbound.YAML(data, maxValues); err != nil {
		return nil, false, fmt.Errorf("network data: %w", err)
	}

	isJSON = json.Valid(data)
	if isJSON {
		root, err = decodeJSON(data)
	} else {
		root, err = decodeYAML(data)
	}

	if err != nil {
		return nil, false, fmt.Errorf("network data: %w", err)
	}

	if root.Kind != yaml.MappingNode {
		return nil, false, fmt.Errorf("network data line %d: must be a mapping (key: value)", root.Line)
	}

	return root, isJSON, nil
}

func decodeYAML(data []byte) (*yaml.Node, error) {
	dec := yaml.NewDecoder(bytes.NewReader(data))

	var doc yaml.Node
	if err := dec.Decode(&doc); errors.Is(err, io.EOF) {
		return nil, errors.New("is empty")
	} else if err != nil {
		return nil, fmt.Errorf("is neither JSON nor YAML: %s", strings.TrimPrefix(err.Error(), "yaml: "))
	}

	var second yaml.Node
	if err := dec.Decode(&second); !errors.Is(err, io.EOF) {
		return nil, errors.New("has a second YAML document or ends badly: only one is read, remove what follows the line ---")
	}

	return plain(doc.Content[0], 0, &budget{values: maxNodes, bytes: maxData})
}

// budget is what a tree may yet have when its aliases are written out.
type budget struct{ values, bytes int }

// plain copies a tree with its aliases and merge keys written out.
func plain(n *yaml.Node, depth int, left *budget) (*yaml.Node, error) {
	if n.Kind == yaml.AliasNode {
		return plain(n.Alias, depth+1, left)
	}

	left.values--
	left.bytes -= len(n.Value)

	if depth > maxDepth || left.values < 0 || left.bytes < 0 {
		return nil, fmt.Errorf("line %d: is more than %d levels deep, or has more than %d values or %d bytes",
			n.Line, maxDepth, maxNodes, maxData)
	}

	out := *n
	out.Anchor, out.Alias, out.Content = "", nil, nil

	if n.Kind == yaml.ScalarNode {
		// The library writes some block texts so that they cannot be read again.
		if strings.ContainsAny(n.Value, "\r\n\u0085\u2028\u2029") || n.Style&(yaml.LiteralStyle|yaml.FoldedStyle) != 0 {
			out.Style = n.Style&^(yaml.LiteralStyle|yaml.FoldedStyle|yaml.SingleQuotedStyle) | yaml.DoubleQuotedStyle
		}

		return &out, nil
	}

	if n.Kind == yaml.MappingNode {
		return &out, plainMapping(n, &out, depth, left)
	}

	for _, c := range n.Content {
		child, err := plain(c, depth+1, left)
		if err != nil {
			return nil, err
		}

		out.Content = append(out.Content, child)
	}

	return &out, nil
}

func plainMapping(n, out *yaml.Node, depth int, left *budget) error {
	var merged []*yaml.Node

	own := map[string]bool{}

	for i := 0; i+1 < len(n.Content); i += 2 {
		key, err := plain(n.Content[i], depth+1, left)
		if err != nil {
			return err
		}

		value, err := plain(n.Content[i+1], depth+1, left)
		if err != nil {
			return err
		}

		switch {
		case key.Kind != yaml.ScalarNode:
			return fmt.Errorf("line %d: a key must be a text", key.Line)
		case key.Tag == "!!merge" && value.Kind == yaml.SequenceNode:
			merged = append(merged, value.Content...)
		case key.Tag == "!!merge":
			merged = append(merged, value)
		case own[key.Value]:
			return fmt.Errorf("line %d: the key %q is there twice", key.Line, key.Value)
		default:
			own[key.Value] = true
			out.Content = append(out.Content, key, value)
		}
	}

	for _, m := range merged {
		if m.Kind != yaml.MappingNode {
			return fmt.Errorf("line %d: << must name mappings", m.Line)
		}

		for i := 0; i+1 < len(m.Content); i += 2 {
			if key := m.Content[i].Value; !own[key] {
				own[key] = true
				out.Content = append(out.Content, m.Content[i], m.Content[i+1])
			}
		}
	}

	return nil
}

func decodeJSON(data []byte) (*yaml.Node, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()

	return jsonValue(dec, 0)
}

func jsonValue(dec *json.Decoder, depth int) (*yaml.Node, error) {
	token, err := dec.Token()
	if err != nil || depth > maxDepth {
		return nil, fmt.Errorf("is not JSON that can be read, or is more than %d levels deep: %w", maxDepth, err)
	}

	switch t := token.(type) {
	case json.Delim:
		if t == '[' {
			return jsonList(dec, depth)
		}

		return jsonMapping(dec, depth)
	case string:
		return text(t), nil
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

func jsonList(dec *json.Decoder, depth int) (*yaml.Node, error) {
	out := list()

	for dec.More() {
		v, err := jsonValue(dec, depth+1)
		if err != nil {
			return nil, err
		}

		out.Content = append(out.Content, v)
	}

	_, err := dec.Token()

	return out, err
}

func jsonMapping(dec *json.Decoder, depth int) (*yaml.Node, error) {
	out := mapping()
	seen := map[string]bool{}

	for dec.More() {
		key, err := jsonValue(dec, depth+1)
		if err != nil {
			return nil, err
		}

		if seen[key.Value] {
			return nil, fmt.Errorf("the key %q is there twice", key.Value)
		}

		seen[key.Value] = true

		v, err := jsonValue(dec, depth+1)
		if err != nil {
			return nil, err
		}

		out.Content = append(out.Content, key, v)
	}

	_, err := dec.Token()

	return out, err
}

// encodeJSON writes a tree as JSON with two spaces of indent.
func encodeJSON(root *yaml.Node) ([]byte, error) {
	var b bytes.Buffer
	if err := writeJSON(&b, root); err != nil {
		return nil, err
	}

	var out bytes.Buffer
	if err := json.Indent(&out, b.Bytes(), "", "  "); err != nil {
		return nil, fmt.Errorf("write network data as JSON: %w", err)
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

			quoteJSON(b, n.Content[i].Value)
			b.WriteByte(':')

			if err := writeJSON(b, n.Content[i+1]); err != nil {
				return err
			}
		}

		b.WriteByte('}')
	default:
		return scalarJSON(b, n)
	}

	return nil
}

// scalarJSON writes one value. Numbers stay as they are written where JSON allows it.
func scalarJSON(b *bytes.Buffer, n *yaml.Node) error {
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
			return fmt.Errorf("network data line %d: %q has no form in JSON: write it as a text", n.Line, n.Value)
		}

		b.Write(out)
	default:
		quoteJSON(b, n.Value)
	}

	return nil
}

func quoteJSON(b *bytes.Buffer, s string) {
	enc := json.NewEncoder(b)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(s) //nolint:errchkjson // a text always encodes

	b.Truncate(b.Len() - 1) // the line's end
}

// encodeYAML writes a tree as YAML with two spaces of indent.
func encodeYAML(root *yaml.Node) ([]byte, error) {
	var b bytes.Buffer

	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)

	if err := enc.Encode(root); err != nil {
		return nil, fmt.Errorf("write network data as YAML: %w", err)
	}

	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("write network data as YAML: %w", err)
	}

	return b.Bytes(), nil
}

// text is a text as a value. The library quotes what a reader of YAML 1.1, as cloud-init
// is, would take for something else: 52:54:00:12:34:56 is a number there.
func text(s string) *yaml.Node {
	n := &yaml.Node{}
	if err := n.Encode(s); err != nil || n.Kind != yaml.ScalarNode || n.Value != s || strings.Contains(s, "\n") {
		n = &yaml.Node{Kind: yaml.ScalarNode, Value: s, Style: yaml.DoubleQuotedStyle}
	}

	n.Tag = tagString

	return n
}

func number(i int) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: strconv.Itoa(i)}
}

func boolean(b bool) *yaml.Node {
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(b)}
}

func list(items ...*yaml.Node) *yaml.Node {
	return &yaml.Node{Kind: yaml.SequenceNode, Tag: tagList, Content: items}
}

func mapping() *yaml.Node { return &yaml.Node{Kind: yaml.MappingNode, Tag: tagMap} }

func texts[T fmt.Stringer](items []T) *yaml.Node {
	out := list()
	for _, i := range items {
		out.Content = append(out.Content, text(i.String()))
	}

	return out
}

// add puts a key at the end of a mapping.
func add(m *yaml.Node, key string, value *yaml.Node) {
	m.Content = append(m.Content, text(key), value)
}

// set replaces a key's value, or adds the key.
func set(m *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			m.Content[i+1] = value

			return
		}
	}

	add(m, key, value)
}

// lookup finds a key's value; nil if there is none or it is null.
func lookup(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key {
			if m.Content[i+1].ShortTag() == tagNull {
				return nil
			}

			return m.Content[i+1]
		}
	}

	return nil
}

// keys are the keys of a mapping in their order.
func keys(m *yaml.Node) []string {
	var out []string
	for i := 0; i+1 < len(m.Content); i += 2 {
		out = append(out, m.Content[i].Value)
	}

	return slices.Clip(out)
}
