// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bounds_test

import (
	"cmp"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

func TestBounds(t *testing.T) {
	t.Parallel()

	for name, tt := range map[string]struct {
		text string
		yaml bool
		want string
	}{
		"a few":                           {`{"a": [1, 2, {"b": "c"}]}`, false, ""},
		"commas in strings":               {`{"a": "1,2,3,4,5,6,7,8,9,10,[{[{", "b": "\\"}`, false, ""},
		"an escaped quote":                {`["\",,,,,,,,,,,,"]`, false, ""},
		"many values":                     {"[" + strings.Repeat("1,", 10) + "1]", false, "it has 12 values, at most 8 are allowed"},
		"many lists":                      {strings.Repeat("[", 8), false, "it has 9 values, at most 8 are allowed"},
		"after a string's end":            {`["\\",,,,,,,,,,]`, false, "values, at most 8 are allowed"},
		"YAML":                            {"a: 1\nb: [1, 2]\nc: a&b & c\n", true, ""},
		"YAML of many lines":              {strings.Repeat("- a\n", 9), true, "it has 19 values, at most 8 are allowed"},
		"YAML with many values in a line": {"[" + strings.Repeat("a,", 9) + "a]", true, "values, at most 8 are allowed"},
		"YAML with nested lists":          {strings.Repeat("- ", 9) + "a", true, "values, at most 8 are allowed"},
		"YAML of keys in keys":            {strings.Repeat("? ", 9) + "a", true, "values, at most 8 are allowed"},
		"YAML with an anchor":             {"a: &x 1\nb: *x\n", true, "has an anchor"},
		"an anchor in a list":             {"[&x 1]", true, "has an anchor"},
		"an anchor at the start":          {"&x a: 1", true, "has an anchor"},
	} {
		check := bounds.CheckJSON
		if tt.yaml {
			check = func(text []byte, most int) error {
				return cmp.Or(bounds.RejectAnchors(text), bounds.CheckYAML(text, most))
			}
		}

		err := check([]byte(tt.text), 8)
		if (err == nil) != (tt.want == "") || err != nil && (!strings.Contains(err.Error(), tt.want) || !errors.Is(err, bounds.ErrTooLarge)) {
			t.Errorf("%s: error %v, want %q", name, err, tt.want)
		}
	}
}

// Every JSON text that CheckJSON accepts has at most the limit of values.
func FuzzJSON(f *testing.F) {
	f.Add([]byte(`{"a": [1, "\",", {"b": null}]}`))
	f.Add([]byte("[[[[[[[[[[1]]]]]]]]]]"))

	f.Fuzz(func(t *testing.T, text []byte) {
		const most = 16

		var value any
		if bounds.CheckJSON(text, most) != nil || json.Unmarshal(text, &value) != nil {
			return
		}

		if has := countValues(value); has > most {
			t.Errorf("%q has %d values", text, has)
		}
	})
}

// countValues counts the scalars in a decoded value.
func countValues(value any) int {
	out := 0

	switch v := value.(type) {
	case []any:
		for _, item := range v {
			out += countValues(item)
		}
	case map[string]any:
		for _, item := range v {
			out += countValues(item)
		}
	default:
		return 1
	}

	return out
}
