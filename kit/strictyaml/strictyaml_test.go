// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

type file struct {
	Name  string            `yaml:"name"`
	Wait  time.Duration     `yaml:"wait"`
	Count *int              `yaml:"count"`
	Small int32             `yaml:"small"`
	Rate  float32           `yaml:"rate"`
	On    bool              `yaml:"on"`
	Any   any               `yaml:"any"`
	Map   map[string]string `yaml:"map"`
	List  []item            `yaml:"list"`
	Group *group            `yaml:"group"`

	hidden string
}

type item struct {
	Key  string   `yaml:"key"`
	Tags []string `yaml:"tags"`
}

type group struct {
	Level string        `yaml:"log_level"`
	Every time.Duration `yaml:"every"`
}

func TestDecode(t *testing.T) {
	t.Parallel()

	got := file{Small: 7, hidden: "x"}

	err := strictyaml.Decode("f", []byte(`
base: &base {key: a, tags: [x]}
`), &got)
	if err == nil {
		t.Error("an unknown field is accepted")
	}

	err = strictyaml.Decode("f", []byte(`
name: 2026-01-02
wait: 90s
count: 3
small:
rate: 2
on: true
any: {n: 1, f: 1.5, s: "1", b: false, z: null, l: [0x10, a], d: 2026-01-02}
map: {a.b/c: "1"}
list:
- &one {key: a, tags: [x]}
- <<: *one
  key: b
- *one
group: {log_level: info}
`), &got)
	if err != nil {
		t.Fatal(err)
	}

	three := 3
	want := file{
		Name: "2026-01-02", Wait: 90 * time.Second, Count: &three, Small: 7, Rate: 2, On: true,
		Any: map[string]any{
			"n": int64(1), "f": 1.5, "s": "1", "b": false, "z": nil, "l": []any{int64(16), "a"}, "d": "2026-01-02",
		},
		Map:   map[string]string{"a.b/c": "1"},
		List:  []item{{"a", []string{"x"}}, {"b", []string{"x"}}, {"a", []string{"x"}}},
		Group: &group{Level: "info"}, hidden: "x",
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(file{})); diff != "" {
		t.Error(diff)
	}
}

func TestProblemsHaveLineAndColumn(t *testing.T) {
	t.Parallel()

	var bombs strings.Builder

	bombs.WriteString("a: &a [x,x,x,x,x,x,x,x,x,x]\n")

	for c := 'b'; c <= 'h'; c++ {
		bombs.WriteString(string(c) + ": &" + string(c) + " [" + strings.Repeat("*"+string(c-1)+",", 10) + "]\n")
	}

	cases := map[string]struct {
		file string
		want []string
	}{
		"all errors together": {
			"nam: x\nwait: 5\ncount: a\nlist:\n- {key: 1}\n- {kee: x, tags: y}\n", []string{
				"f:1:1: nam: unknown field (did you mean name?)",
				"f:2:7: wait: is 5, want a duration such as 30s or 5m",
				`f:3:8: count: is "a", want a whole number`,
				"f:5:9: list[0].key: is 1, want a string (numbers in quotes)",
				"f:6:4: list[1].kee: unknown field (did you mean key?)",
				`f:6:18: list[1].tags: is "y", want a list`,
			},
		},
		"double key":         {"name: a\nname: b\n", []string{"f:2:1: duplicate key name, first used in line 1"}},
		"key with a dot":     {"map: {a.b: [1]}", []string{`f:1:12: map["a.b"]: is a list, want a string (numbers in quotes)`}},
		"number as key":      {"any: {1: x}", []string{"f:1:7: key 1 is not a string: put it in quotes"}},
		"no mapping":         {"- a", []string{"f:1:1: is a list, want a mapping of keys to values"}},
		"two documents":      {"name: a\n---\nname: b\n", []string{"f:2:1: a second YAML document (only one document is allowed: remove the line --- and everything after it)"}},
		"no YAML":            {"name: a\n\tx: y\n", []string{"f:2:1: invalid YAML: found a tab character that violates indentation"}},
		"too large a number": {"small: 3000000000", []string{"f:1:8: small: is 3000000000, want a whole number"}},
		"aliases of aliases": {bombs.String(), []string{"expand to more than 400000 keys and values"}},
		"merge of a text":    {"group:\n  <<: x\n", []string{"f:2:7: << requires a mapping or a list of mappings"}},
	}

	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := strictyaml.Decode("f", []byte(test.file), &file{})

			var problems strictyaml.Problems
			if !errors.As(err, &problems) || len(problems) < len(test.want) {
				t.Fatalf("error: %v", err)
			}

			for i, want := range test.want {
				if got := problems[i].String(); got != want && (len(test.want) > 1 || !strings.Contains(got, want)) {
					t.Errorf("problem %d:\n got %s\nwant %s", i, got, want)
				}
			}

			if len(problems) != len(test.want) && name != "aliases of aliases" {
				t.Errorf("problems:\n%v", err)
			}
		})
	}
}

func TestPositionOfPath(t *testing.T) {
	t.Parallel()

	doc, err := strictyaml.Parse("f", []byte("list:\n- key: a\n- key: b\n  tags:\n  - x\n"))
	if err != nil {
		t.Fatal(err)
	}

	cases := map[string]strictyaml.Path{
		"f:3:8: list[1].key: bad":             {"list", 1, "key"},
		"f:3:3: list[1].none: bad":            {"list", 1, "none"},
		"f:5:5: list[1].tags[0]: bad":         {"list", 1, "tags", 0},
		"f:2:1: list[9].key: bad":             {"list", 9, "key"},
		"f:1:1: bad":                          {},
		`f:1:1: x["a b"][""]["c.d/e"].f: bad`: strictyaml.Path{"x", "a b", "", "c.d/e"}.Append("f"),
	}
	for want, path := range cases {
		if got := doc.ProblemAt(path, "bad").String(); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}

	if !doc.HasValue(strictyaml.Path{"list", 1, "tags"}) || doc.HasValue(strictyaml.Path{"list", 0, "tags"}) {
		t.Error("Has does not find an existing key")
	}

	var tags []string
	if err := doc.DecodeAt(strictyaml.Path{"list", 1, "tags"}, &tags); err != nil || !cmp.Equal(tags, []string{"x"}) {
		t.Errorf("DecodeAt: %v, %v", tags, err)
	}
}

func TestPositionInText(t *testing.T) {
	t.Parallel()

	const file = "plain: a && b\nquoted: 'x == \"y\"'\nescaped: \"a \\\" b\"\nfolded: >\n  one\n  two three\n" +
		"literal: |\n    one\n      two\n\nblank: >\n  a\n\n  b\nlast: >-\n  \u00e4 b\n  c"

	doc, err := strictyaml.Parse("f", []byte(file))
	if err != nil {
		t.Fatal(err)
	}

	cases := []struct {
		key          string
		line, column int
		want         string
		ok           bool
	}{
		{"plain", 1, 6, "f:1:13: plain: x", true},
		{"quoted", 1, 1, "f:2:10: quoted: x", true},
		{"escaped", 1, 3, "f:3:10: escaped: x", false},
		{"folded", 1, 1, "f:5:3: folded: x", true},
		{"folded", 1, 9, "f:6:7: folded: x", true},
		{"literal", 2, 3, "f:9:7: literal: x", true},
		{"blank", 1, 1, "f:11:8: blank: x", false},
		{"last", 1, 5, "f:17:3: last: x", true},
		{"last", 9, 99, "f:15:7: last: x", false},
		{"none", 1, 1, "f:1:1: none: x", false},
	}

	for _, test := range cases {
		if got, ok := doc.ProblemInside(strictyaml.Path{test.key}, test.line, test.column, "x"); got.String() != test.want || ok != test.ok {
			t.Errorf("%s %d:%d: %s, %v, want %s, %v", test.key, test.line, test.column, got, ok, test.want, test.ok)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte("name: a\nlist: [{key: b}]\nany: {<<: &a {b: c}, d: *a}\n"))
	f.Add([]byte("a: &a [*a]"))
	f.Add([]byte("any: !!binary aGk=\nwait: !!int 3"))
	f.Fuzz(func(t *testing.T, data []byte) {
		var out file

		doc, err := strictyaml.Parse("f", data)
		if err == nil {
			err = doc.Decode(&out)
			doc.ProblemInside(strictyaml.Path{"name"}, 1, 3, "x")
		}

		var problems strictyaml.Problems
		if err != nil && (!errors.As(err, &problems) || len(problems) == 0) {
			t.Errorf("error of another type: %v", err)
		}
	})
}
