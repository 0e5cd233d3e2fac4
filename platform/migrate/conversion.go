// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Result is a converted file.
type Result struct {
	// Kind is what the file configures, for people.
	Kind string
	// Text is the converted file.
	Text []byte
	// Notes are the values that were added or left out, and the differences in behavior.
	Notes strictyaml.Problems
	// Left are the problems that a person must fix.
	Left strictyaml.Problems
}

// rule converts the value at a path of the source.
type rule func(c *conversion, path strictyaml.Path, value any)

// rules hold the rule of each known key, by its path. Elements of lists have the path [].
type rules map[string]rule

type conversion struct {
	doc    *strictyaml.Document
	source map[string]any
	// prefix is the path of source in the document, and keyOf maps a key of a rule to the key in the document. Helm
	// values have the configuration below a key, and Sentinel's are in camelCase.
	prefix strictyaml.Path
	keyOf  func(string) string
	out    map[string]any
	result *Result
}

// convert converts the source with the rules. A key without a rule is a problem.
func (c *conversion) convert(table rules) {
	c.walk(table, nil, c.source)
}

// walk applies the rule of a path to its value. Without a rule, it walks the items of the value, and reports every leaf
// that has no rule.
func (c *conversion) walk(table rules, path strictyaml.Path, value any) {
	if apply, ok := table[pattern(path)]; ok {
		if value != nil {
			apply(c, path, value)
		}

		return
	}

	if isEmpty(value) {
		if !table.hasBelow(pattern(path)) {
			c.addUnknownKey(path)
		}

		return
	}

	switch typed := value.(type) {
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(typed)) {
			c.walk(table, path.Append(key), typed[key])
		}
	case []any:
		for i := range typed {
			c.walk(table, path.Append(i), typed[i])
		}
	default:
		c.addUnknownKey(path)
	}
}

func (c *conversion) addUnknownKey(path strictyaml.Path) {
	c.addProblem(path, "unknown key", "remove it, or write what it should do here by hand")
}

// isEmpty reports whether a value is null, an empty list or an empty mapping, which has no keys inside.
func isEmpty(value any) bool {
	switch typed := value.(type) {
	case nil:
		return true
	case map[string]any:
		return len(typed) == 0
	case []any:
		return len(typed) == 0
	default:
		return false
	}
}

// hasBelow reports whether a key inside the value at the path has a rule.
func (r rules) hasBelow(path string) bool {
	for key := range r {
		if path == "" || strings.HasPrefix(key, path+".") || strings.HasPrefix(key, path+"[") {
			return true
		}
	}

	return false
}

// pattern returns the path with [] for indexes.
func pattern(path strictyaml.Path) string {
	var out strings.Builder

	for _, element := range path {
		switch typed := element.(type) {
		case string:
			if out.Len() > 0 {
				out.WriteByte('.')
			}

			out.WriteString(typed)
		default:
			out.WriteString("[]")
		}
	}

	return out.String()
}

func (c *conversion) place(path strictyaml.Path) strictyaml.Path {
	out := slices.Clone(c.prefix)

	for _, element := range path {
		if key, ok := element.(string); ok && c.keyOf != nil {
			element = c.keyOf(key)
		}

		out = append(out, element)
	}

	return out
}

func (c *conversion) note(path strictyaml.Path, message, hint string) {
	problem := c.doc.ProblemAt(c.place(path), "%s", message)
	problem.Hint = hint
	c.result.Notes = append(c.result.Notes, problem)
}

// addProblem reports a value that was not converted, and that a person must fix.
func (c *conversion) addProblem(path strictyaml.Path, message, hint string) {
	problem := c.doc.ProblemAt(c.place(path), "%s", message)
	problem.Hint = hint
	c.result.Left = append(c.result.Left, problem)
}

// set sets a value of the output. Dots separate the keys of the path.
func (c *conversion) set(path string, value any) {
	setAt(c.out, strings.Split(path, "."), value)
}

func setAt(out map[string]any, keys []string, value any) {
	for _, key := range keys[:len(keys)-1] {
		inner, ok := out[key].(map[string]any)
		if !ok {
			inner = map[string]any{}
			out[key] = inner
		}

		out = inner
	}

	out[keys[len(keys)-1]] = value
}

// get returns the value at a path of the source, or fallback if the source has none.
func (c *conversion) get(path string, fallback any) any {
	var current any = c.source

	for key := range strings.SplitSeq(path, ".") {
		inner, ok := current.(map[string]any)
		if !ok || inner[key] == nil {
			return fallback
		}

		current = inner[key]
	}

	return current
}

// keep copies the value to the same path of the output.
func keep(c *conversion, path strictyaml.Path, value any) { c.set(pattern(path), value) }

// rename copies the value to another path of the output. An empty text means the default.
func rename(target string) rule {
	return func(c *conversion, _ strictyaml.Path, value any) {
		if value != "" {
			c.set(target, value)
		}
	}
}

// omit leaves the value out. It reports the reason, unless the value is one of unreported.
func omit(reason string, unreported ...any) rule {
	return func(c *conversion, path strictyaml.Path, value any) {
		if !contains(unreported, value) {
			c.note(path, "left out: "+reason, "")
		}
	}
}

// only accepts the values that this project has as a constant, and reports others as problems.
func only(hint string, accepted ...any) rule {
	return func(c *conversion, path strictyaml.Path, value any) {
		if !contains(accepted, value) {
			c.addProblem(path, fmt.Sprintf("%v has no counterpart", describe(value)), hint)
		}
	}
}

// ignore omits a value without reporting it, because another rule reads it.
func ignore(*conversion, strictyaml.Path, any) {}

func contains(values []any, value any) bool {
	return slices.ContainsFunc(values, func(other any) bool { return reflect.DeepEqual(other, value) })
}

func describe(value any) any {
	switch value.(type) {
	case map[string]any, []any:
		return "the value"
	default:
		return value
	}
}

func (c *conversion) finish() (*Result, error) {
	text, err := strictyaml.Encode(c.out)
	if err != nil {
		return nil, err
	}

	c.result.Text = text
	c.result.Notes, c.result.Left = c.result.Notes.Sorted(), c.result.Left.Sorted()

	return c.result, nil
}
