// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

// parseYAML reads one YAML mapping. Field names it in errors. Empty text is an empty
// mapping. Line numbers are those of the rendered text.
func parseYAML(field, text string) (*yaml.Node, error) {
	empty := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}

	most, left := maxOtherValues, budget{values: 2 * maxOtherValues, bytes: maxOtherData}
	if field == fieldUserData {
		most, left = maxUserValues, budget{values: 2 * maxUserValues, bytes: DefaultMaxUserData}
	}

	if err := inputbound.YAML([]byte(text), most); err != nil {
		return nil, fmt.Errorf("%s: after rendering, %w: write large files in base64, or let the machine fetch them", field, err)
	}

	dec := yaml.NewDecoder(strings.NewReader(text))

	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if err.Error() == "EOF" {
			return empty, nil
		}

		return nil, yamlError(field, err)
	}

	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		return nil, fmt.Errorf("%s line %d: a second YAML document begins here: cloud-init reads one, remove the line ---",
			field, second.Line)
	} else if err.Error() != "EOF" {
		return nil, yamlError(field, err)
	}

	root := resolve(doc.Content[0])
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return empty, nil
	}

	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s line %d: must be a YAML mapping (key: value), not a %s", field, root.Line, kindName(root))
	}

	if err := doubleKey(root); err != nil {
		return nil, yamlError(field, err)
	}

	root = plain(root, &left)
	if left.values < 0 || left.bytes < 0 {
		return nil, fmt.Errorf("%s: %w: its aliases make it more than it may be: write it without them", field, inputbound.ErrTooLarge)
	}

	var values map[string]any // finds values that are not what their tags say, and the like
	if err := root.Decode(&values); err != nil {
		return nil, yamlError(field, err)
	}

	return flattenMerges(root), nil
}

// What a text may have: each value takes some memory, and so does a line of a script.
const (
	maxUserValues  = 5000
	maxOtherValues = 4000
)

// budget is what a document may yet have when its aliases are written out. The values are twice
// those of its text, because keys, lists and mappings count, too.
type budget struct{ values, bytes int }

// doubleKey finds the first key that a mapping has twice. The library finds all pairs, and keeps a
// line for each: thousands of one key take minutes and gigabytes.
func doubleKey(n *yaml.Node) error {
	seen := map[string]int{}

	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && c.Kind == yaml.ScalarNode {
			if line, double := seen[c.Value]; double {
				return fmt.Errorf("line %d: mapping key %q already defined at line %d", c.Line, c.Value, line)
			}

			seen[c.Value] = c.Line
		}

		if err := doubleKey(c); err != nil {
			return err
		}
	}

	return nil
}

// yamlError turns the parser's words into ours.
func yamlError(field string, err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")

	var typed *yaml.TypeError
	if errors.As(err, &typed) && len(typed.Errors) > 0 {
		text = typed.Errors[0]
	}

	return fmt.Errorf("%s: not valid YAML after rendering, %s: fix the template "+
		"(values that may hold special characters are safe as {{ .Name | toJson }})", field, text)
}

// resolve follows an alias to what it stands for.
func resolve(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}

	return n
}

// plain copies a document with its aliases written out, so that adding to one place
// changes no other, and with folded texts as literal ones: the same values in the
// plainer form. A budget below zero says that the copy was given up.
func plain(n *yaml.Node, left *budget) *yaml.Node {
	n = resolve(n)
	out := *n
	out.Anchor, out.Content = "", nil

	out.Style = plainStyle(n)
	left.bytes -= len(n.Value)

	for _, c := range n.Content {
		left.values--
		if left.values < 0 || left.bytes < 0 {
			break
		}

		out.Content = append(out.Content, plain(c, left))
	}

	return &out
}

// plainStyle is the style to write a node in. The library writes block texts that begin
// with a blank or a line end so that they cannot be read again: those are quoted.
func plainStyle(n *yaml.Node) yaml.Style {
	const block = yaml.FoldedStyle | yaml.LiteralStyle

	multiline := n.Kind == yaml.ScalarNode && strings.Contains(n.Value, "\n")

	switch {
	case n.Style&block == 0 && !multiline:
		return n.Style
	case n.Value == "", strings.ContainsRune(" \t\r\n", rune(n.Value[0])):
		return n.Style&^block | yaml.DoubleQuotedStyle
	case n.Style&yaml.FoldedStyle != 0:
		return n.Style&^block | yaml.LiteralStyle
	default:
		return n.Style
	}
}

// flattenMerges copies what top-level merge keys (<<) bring in, so that keys added by
// us do not hide it.
func flattenMerges(root *yaml.Node) *yaml.Node {
	out := *root
	out.Content = nil

	var merged []*yaml.Node

	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Tag != "!!merge" {
			out.Content = append(out.Content, key, value)

			continue
		}

		if from := resolve(value); from.Kind == yaml.SequenceNode {
			merged = append(merged, from.Content...)
		} else {
			merged = append(merged, from)
		}
	}

	for _, m := range merged {
		m = flattenMerges(resolve(m))
		for i := 0; i < len(m.Content); i += 2 {
			if lookup(&out, m.Content[i].Value) == nil {
				out.Content = append(out.Content, m.Content[i], m.Content[i+1])
			}
		}
	}

	return &out
}

// lookup finds the value of a key, aliases followed; nil if there is none.
func lookup(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key && m.Content[i].Kind == yaml.ScalarNode {
			return resolve(m.Content[i+1])
		}
	}

	return nil
}

// set replaces a key's value or adds the key at the end.
func set(m *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key && m.Content[i].Kind == yaml.ScalarNode {
			m.Content[i+1] = value

			return
		}
	}

	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
}

// mergeInto adds ours to the user's mapping: lists append, mappings merge, a scalar that
// both give must be equal. Nothing of the user's is changed. Where names what is merged.
func mergeInto(where string, user, ours *yaml.Node) error {
	for i := 0; i+1 < len(ours.Content); i += 2 {
		key, value := ours.Content[i].Value, ours.Content[i+1]

		merged, err := mergeValue(where+"."+key, lookup(user, key), value)
		if err != nil {
			return err
		}

		set(user, key, merged)
	}

	return nil
}

func mergeValue(where string, user, ours *yaml.Node) (*yaml.Node, error) {
	switch {
	case user == nil, user.Tag == "!!null":
		return ours, nil
	case user.Kind != ours.Kind:
		return nil, fmt.Errorf("%s line %d: is a %s, must be a %s: the operator adds to it",
			where, user.Line, kindName(user), kindName(ours))
	case user.Kind == yaml.SequenceNode:
		out := *user
		out.Content = append(append([]*yaml.Node(nil), user.Content...), ours.Content...)
		out.Style &^= yaml.FlowStyle

		return &out, nil
	case user.Kind == yaml.MappingNode:
		out := flattenMerges(user)

		return out, mergeInto(where, out, ours)
	case user.Value != ours.Value:
		return nil, fmt.Errorf("%s line %d: is %q, the machine's is %q: leave it out, or write the variable",
			where, user.Line, user.Value, ours.Value)
	default:
		return user, nil
	}
}

func kindName(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "mapping"
	case n.Kind == yaml.SequenceNode:
		return "list"
	case n.Tag == "!!null":
		return "null"
	default:
		return "single value"
	}
}

// toNode turns a value of ours into YAML. Struct fields keep their order.
func toNode(v any) (*yaml.Node, error) {
	var n yaml.Node
	if err := n.Encode(v); err != nil {
		return nil, fmt.Errorf("write as YAML: %w", err)
	}

	return &n, nil
}

// encode writes YAML with two spaces of indent.
func encode(n *yaml.Node) ([]byte, error) {
	var b bytes.Buffer

	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)

	if err := enc.Encode(n); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}

	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}

	return b.Bytes(), nil
}
