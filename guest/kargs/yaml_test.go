// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs

import (
	"strings"
	"testing"
)

func seeds() []string {
	return []string{
		"version: 2\nethernets:\n  eth0:\n    addresses: [10.0.0.1/8, 'a''b', \"c\\u0041\"]\n    routes:\n    - to: ::/0\n      via: fe80::1\n",
		"a:\n- b\n-   c: d\n    e: f\n-\n  g: h\n- - i\n  - j\n", "a: {b: c, d: [e, {f: g}], 'h': }\n", "a: b # c\n# d\ne: f#g\n",
		"a: [b,\n  c, # d\n  e]\nf: ~\n", "'a b': c\n\"d\": e\n", "- a: b\n  c: d\n- e\n", "a:\n  b\n", "{a: b}", "[a, [b]]", "a",
		"a: - b\n", "a: b: c\n", "a: [b\n", "a:b\n", "a : b\n", "? a\n", "a: *b\n", "a: 'b\n  c'\n", "---\na: b\n", "a: [b: c]\n", "a: {b}\n", "- \n- a", ": a", "a: @b", "a: \"b\"c",
	}
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
