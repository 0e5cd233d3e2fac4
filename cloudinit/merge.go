// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit

import (
	"errors"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// parseYAML parses one YAML mapping. An empty text is an empty mapping. Errors contain field and the line
// number in the rendered text.
func parseYAML(field, text string) (*yaml.Node, error) {
	maxValues, maxBytes := maxOtherValues, maxOtherData
	if field == fieldUserData {
		maxValues, maxBytes = maxUserValues, MaxUserData
	}

	if err := bounds.CheckYAML([]byte(text), maxValues); err != nil {
		return nil, fmt.Errorf("%s: after rendering, %w: write large files in base64, or let the machine download them", field, err)
	}

	root, err := strictyaml.ParseTree([]byte(text), strictyaml.TreeOptions{MaxNodes: 2 * maxValues, MaxBytes: maxBytes})
	if errors.Is(err, bounds.ErrTooLarge) {
		return nil, fmt.Errorf("%s: after rendering, %w: write it without aliases", field, err)
	}

	if err == nil && root.Kind != yaml.MappingNode {
		return nil, fmt.Errorf("%s line %d: must be a YAML mapping (key: value), not a %s", field, root.Line, kindName(root))
	}

	if err == nil {
		var values map[string]any // finds errors such as values that do not match their tags

		err = root.Decode(&values)
	}

	if typed, ok := errors.AsType[*yaml.TypeError](err); ok && len(typed.Errors) > 0 {
		err = errors.New(typed.Errors[0])
	}

	if err != nil {
		return nil, fmt.Errorf("%s: not valid after rendering, %w: fix the template "+
			"(write values with special characters as {{ .Name | toJson }})", field, strictyaml.First(err))
	}

	return root, nil
}

// Maximum numbers of values in a text. They limit memory: each value needs some, and so does each line of a
// script. A tree may have twice as many nodes, because keys, lists and mappings count too.
const (
	maxUserValues  = 5000
	maxOtherValues = 4000
)

// mergeInto merges the operator's mapping into the user's. It appends lists and merges mappings. A scalar in
// both must be equal. It changes no value of the user. Errors contain path.
func mergeInto(path string, user, operator *yaml.Node) error {
	for i := 0; i+1 < len(operator.Content); i += 2 {
		key, value := operator.Content[i].Value, operator.Content[i+1]

		merged, err := mergeValue(path+"."+key, strictyaml.Lookup(user, key), value)
		if err != nil {
			return err
		}

		strictyaml.SetKey(user, key, merged)
	}

	return nil
}

func mergeValue(path string, user, operator *yaml.Node) (*yaml.Node, error) {
	switch {
	case user == nil:
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
		return user, mergeInto(path, user, operator)
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
