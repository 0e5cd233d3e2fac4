// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"bytes"
	"errors"
	"fmt"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

// parseYAML parses one YAML mapping. An empty text is an empty mapping. Errors contain field and the line
// number in the rendered text.
func parseYAML(field, text string) (*yaml.Node, error) {
	empty := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}

	maxValues, remaining := maxOtherValues, budget{values: 2 * maxOtherValues, bytes: maxOtherData}
	if field == fieldUserData {
		maxValues, remaining = maxUserValues, budget{values: 2 * maxUserValues, bytes: MaxUserData}
	}

	if err := bounds.CheckYAML([]byte(text), maxValues); err != nil {
		return nil, fmt.Errorf("%s: after rendering, %w: write large files in base64, or let the machine download them", field, err)
	}

	dec := yaml.NewDecoder(strings.NewReader(text))

	var doc yaml.Node
	if err := dec.Decode(&doc); err != nil {
		if err.Error() == "EOF" {
			return empty, nil
		}

		return nil, newYAMLError(field, err)
	}

	var second yaml.Node
	if err := dec.Decode(&second); err == nil {
		return nil, fmt.Errorf("%s line %d: a second YAML document starts here, but cloud-init reads only one: remove the line ---",
			field, second.Line)
	} else if err.Error() != "EOF" {
		return nil, newYAMLError(field, err)
	}

	root := resolveAlias(doc.Content[0])
	if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
		return empty, nil
	}

	if root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s line %d: must be a YAML mapping (key: value), not a %s", field, root.Line, kindName(root))
	}

	if err := rejectDuplicateKeys(root); err != nil {
		return nil, newYAMLError(field, err)
	}

	root = expandAliases(root, &remaining)
	if remaining.values < 0 || remaining.bytes < 0 {
		return nil, fmt.Errorf("%s: %w after its aliases are expanded: write it without aliases", field, bounds.ErrTooLarge)
	}

	var values map[string]any // finds errors such as values that do not match their tags
	if err := root.Decode(&values); err != nil {
		return nil, newYAMLError(field, err)
	}

	return expandMergeKeys(root), nil
}

// Maximum numbers of values in a text. They limit memory: each value needs some, and so does each line of a
// script.
const (
	maxUserValues  = 5000
	maxOtherValues = 4000
)

// budget contains how many values and bytes a document may still add when its aliases are expanded. The limit
// of values is twice that of the text, because keys, lists and mappings count too.
type budget struct{ values, bytes int }

// rejectDuplicateKeys returns an error for the first duplicate key of a mapping. The library would report all
// pairs with a line for each, which takes minutes and gigabytes for thousands of equal keys.
func rejectDuplicateKeys(n *yaml.Node) error {
	seen := map[string]int{}

	for i, c := range n.Content {
		if n.Kind == yaml.MappingNode && i%2 == 0 && c.Kind == yaml.ScalarNode {
			if line, duplicate := seen[c.Value]; duplicate {
				return fmt.Errorf("line %d: mapping key %q already defined at line %d", c.Line, c.Value, line)
			}

			seen[c.Value] = c.Line
		}

		if err := rejectDuplicateKeys(c); err != nil {
			return err
		}
	}

	return nil
}

// newYAMLError converts an error of the parser to an error with the field and the fix.
func newYAMLError(field string, err error) error {
	text := strings.TrimPrefix(err.Error(), "yaml: ")

	var typed *yaml.TypeError
	if errors.As(err, &typed) && len(typed.Errors) > 0 {
		text = typed.Errors[0]
	}

	return fmt.Errorf("%s: not valid YAML after rendering, %s: fix the template "+
		"(write values with special characters as {{ .Name | toJson }})", field, text)
}

// resolveAlias returns the node to which an alias refers, and n itself if it is not an alias.
func resolveAlias(n *yaml.Node) *yaml.Node {
	for n.Kind == yaml.AliasNode {
		n = n.Alias
	}

	return n
}

// expandAliases copies a document and expands its aliases, so that a change in one place does not change
// another. It also converts folded texts to literal texts with the same value. If the budget is below zero
// afterwards, the copy is incomplete.
func expandAliases(n *yaml.Node, remaining *budget) *yaml.Node {
	n = resolveAlias(n)
	out := *n
	out.Anchor, out.Content = "", nil

	out.Style = chooseStyle(n)
	remaining.bytes -= len(n.Value)

	for _, c := range n.Content {
		remaining.values--
		if remaining.values < 0 || remaining.bytes < 0 {
			break
		}

		out.Content = append(out.Content, expandAliases(c, remaining))
	}

	return &out
}

// chooseStyle returns the style in which to write a node. It quotes block texts that start with a blank or a
// line end, because the library writes those in a form that it cannot parse.
func chooseStyle(n *yaml.Node) yaml.Style {
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

// expandMergeKeys replaces the top-level merge keys (<<) of YAML with the keys of the mappings to which
// they refer. Otherwise a key of the operator would hide such a key of the user.
func expandMergeKeys(root *yaml.Node) *yaml.Node {
	out := *root
	out.Content = nil

	var merged []*yaml.Node

	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if key.Tag != "!!merge" {
			out.Content = append(out.Content, key, value)

			continue
		}

		if source := resolveAlias(value); source.Kind == yaml.SequenceNode {
			merged = append(merged, source.Content...)
		} else {
			merged = append(merged, source)
		}
	}

	for _, m := range merged {
		m = expandMergeKeys(resolveAlias(m))
		for i := 0; i < len(m.Content); i += 2 {
			if lookup(&out, m.Content[i].Value) == nil {
				out.Content = append(out.Content, m.Content[i], m.Content[i+1])
			}
		}
	}

	return &out
}

// lookup returns the value of a key with aliases resolved, and nil if the mapping does not have the key.
func lookup(m *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key && m.Content[i].Kind == yaml.ScalarNode {
			return resolveAlias(m.Content[i+1])
		}
	}

	return nil
}

// setKey replaces the value of a key, or adds the key at the end.
func setKey(m *yaml.Node, key string, value *yaml.Node) {
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Value == key && m.Content[i].Kind == yaml.ScalarNode {
			m.Content[i+1] = value

			return
		}
	}

	m.Content = append(m.Content, &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: key}, value)
}

// mergeInto merges the operator's mapping into the user's. It appends lists and merges mappings. A scalar in
// both must be equal. It changes no value of the user. Errors contain path.
func mergeInto(path string, user, operator *yaml.Node) error {
	for i := 0; i+1 < len(operator.Content); i += 2 {
		key, value := operator.Content[i].Value, operator.Content[i+1]

		merged, err := mergeValue(path+"."+key, lookup(user, key), value)
		if err != nil {
			return err
		}

		setKey(user, key, merged)
	}

	return nil
}

func mergeValue(path string, user, operator *yaml.Node) (*yaml.Node, error) {
	switch {
	case user == nil, user.Tag == "!!null":
		return operator, nil
	case user.Kind != operator.Kind:
		return nil, fmt.Errorf("%s line %d: is a %s, must be a %s, because the operator adds to it",
			path, user.Line, kindName(user), kindName(operator))
	case user.Kind == yaml.SequenceNode:
		out := *user
		out.Content = append(append([]*yaml.Node(nil), user.Content...), operator.Content...)
		out.Style &^= yaml.FlowStyle

		return &out, nil
	case user.Kind == yaml.MappingNode:
		out := expandMergeKeys(user)

		return out, mergeInto(path, out, operator)
	case user.Value != operator.Value:
		return nil, fmt.Errorf("%s line %d: is %q, but this machine has %q: remove the key, "+
			"or use the template variable with this value",
			path, user.Line, user.Value, operator.Value)
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

// toNode converts a value to YAML nodes. Struct fields keep their order.
func toNode(v any) (*yaml.Node, error) {
	var n yaml.Node
	if err := n.Encode(v); err != nil {
		return nil, fmt.Errorf("convert to YAML: %w", err)
	}

	return &n, nil
}

// encodeYAML encodes YAML with an indent of two spaces.
func encodeYAML(n *yaml.Node) ([]byte, error) {
	var b bytes.Buffer

	enc := yaml.NewEncoder(&b)
	enc.SetIndent(2)

	if err := enc.Encode(n); err != nil {
		return nil, fmt.Errorf("encode YAML: %w", err)
	}

	if err := enc.Close(); err != nil {
		return nil, fmt.Errorf("encode YAML: %w", err)
	}

	return b.Bytes(), nil
}
