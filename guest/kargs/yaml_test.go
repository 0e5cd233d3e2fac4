// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"
)

// reference reads YAML with the library, into our values.
func reference(n *yaml.Node) (*value, error) {
	switch n.Kind {
	case yaml.ScalarNode:
		return &value{text: n.Value, quoted: n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) != 0}, nil
	case yaml.SequenceNode, yaml.MappingNode:
		v := &value{kind: sequence}
		if n.Kind == yaml.MappingNode {
			v.kind = mapping
		}

		for i, c := range n.Content {
			if n.Kind == yaml.MappingNode && i%2 == 0 {
				if c.Kind != yaml.ScalarNode {
					return nil, fmt.Errorf("line %d: key", c.Line)
				}

				v.keys = append(v.keys, c.Value)

				continue
			}

			item, err := reference(c)
			if err != nil {
				return nil, err
			}

			v.items = append(v.items, item)
		}

		return v, nil
	default:
		return nil, fmt.Errorf("line %d: kind %d", n.Line, n.Kind)
	}
}

// forget drops what the library does not tell the same way.
func forget(v *value) *value {
	v.line = 0
	for _, i := range v.items {
		forget(i)
	}

	return v
}

func seeds() []string {
	return []string{
		"version: 2\nethernets:\n  eth0:\n    addresses: [10.0.0.1/8, 'a''b', \"c\\u0041\"]\n    routes:\n    - to: ::/0\n      via: fe80::1\n",
		"a:\n- b\n-   c: d\n    e: f\n-\n  g: h\n- - i\n  - j\n", "a: {b: c, d: [e, {f: g}], 'h': }\n", "a: b # c\n# d\ne: f#g\n",
		"a: [b,\n  c, # d\n  e]\nf: ~\n", "'a b': c\n\"d\": e\n", "- a: b\n  c: d\n- e\n", "a:\n  b\n", "{a: b}", "[a, [b]]", "a",
		"a: - b\n", "a: b: c\n", "a: [b\n", "a:b\n", "a : b\n", "? a\n", "a: *b\n", "a: 'b\n  c'\n", "---\na: b\n", "a: [b: c]\n", "a: {b}\n", "- \n- a", ": a", "a: @b", "a: \"b\"c",
	}
}

// FuzzYAML: what our reader takes, it takes for what the library takes it for.
func FuzzYAML(f *testing.F) {
	for _, s := range seeds() {
		f.Add(s)
	}

	f.Fuzz(func(t *testing.T, data string) {
		got, err := parse([]byte(data))
		if err != nil || json.Valid([]byte(data)) || strings.TrimSpace(data) == "" {
			return
		}

		var doc yaml.Node
		if err := yaml.Unmarshal([]byte(data), &doc); err != nil {
			t.Fatalf("only we read it: %v\n%q", err, data)
		}

		if len(doc.Content) == 0 {
			if !got.null() {
				t.Fatalf("has nothing in it, and we read %+v from %q", got, data)
			}

			return
		}

		want, err := reference(doc.Content[0])
		if err != nil {
			t.Fatalf("only we read it: %v\n%q", err, data)
		}

		if diff := cmp.Diff(want, forget(got), cmp.AllowUnexported(value{})); diff != "" {
			t.Errorf("%q:\n%s", data, diff)
		}
	})
}

// FuzzArguments: whatever is on the drive, an argument is one word, and one we know.
func FuzzArguments(f *testing.F) {
	for _, s := range seeds() {
		f.Add(s)
	}

	f.Add(`{"links":[{"id":"a","type":"phy","name":"eth0"}],"networks":[{"id":"n","type":"ipv6","link":"a","ip_address":"::1/8"}]}`)
	f.Add("config:\n- {type: physical, name: a, subnets: [{type: static, address: 10.0.0.1/8, gateway: 10.0.0.2}]}\n")

	f.Fuzz(func(t *testing.T, data string) {
		for _, read := range []func([]byte) (Result, error){OpenStack, NoCloud} {
			r, err := read([]byte(data))
			if err != nil {
				continue
			}

			for _, a := range r.Arguments {
				known := strings.HasPrefix(a, "ip=") || strings.HasPrefix(a, "rd.route=") || strings.HasPrefix(a, "nameserver=")
				if !known || len(strings.Fields(a)) != 1 {
					t.Errorf("%q from %q", a, data)
				}
			}
		}
	})
}
