// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package budgets_test

import (
	"encoding/base64"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/guest"
)

// fill returns a text of approximately this size: a part repeated between two others.
func fill(size int, begin, part, end string) string {
	return begin + strings.Repeat(part, max(0, size-len(begin)-len(end))/len(part)) + end
}

// shapes returns functions that return expensive texts of approximately a size.
func shapes() map[string]func(size int) string {
	out := map[string]func(size int) string{
		"closed lists": func(size int) string { return strings.Repeat("[", size/2) + strings.Repeat("]", size/2) },
		"few anchors": func(size int) string {
			return fill(min(size, 4000), "a: &a [1,1,1,1]\nb: &b [*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b]\nd: [", "*c,", "*c]\n")
		},
		"merged anchors": func(size int) string {
			return fill(min(size, 4000), "a: &a {b: 1, c: 2, d: 3, e: 4, f: 5}\nb: [", "{<<: *a},", "1]\n")
		},
	}

	for name, parts := range map[string][3]string{
		"numbers":      {`{"ignition":{"version":"3.4.0"},"version":2,"workflow_job":{"id":1,"labels":[`, "1,", `1]}}`},
		"labels":       {`{"workflow_job":{"id":1,"status":"queued","labels":[`, `"a",`, `"a"]},"labels":["a"]}`},
		"own labels":   {`{"id":"1","state":"queued","source":"s","labels":[`, `"a",`, `"a"]}`},
		"escapes":      {`{"version":2,"source":"`, `\u0041`, `"}`},
		"lists":        {"", "[", ""},
		"objects":      {"", `{"a":`, "1"},
		"empty ones":   {"a: [", "[],", "{}]"},
		"small maps":   {`{"ignition":{"version":"3.4.0"},"version":2,"workflow_job":{"id":1,"labels":[`, `{"a":1},`, `1]}}`},
		"empty maps":   {`{"ignition":{"version":"3.4.0"},"version":2,"workflow_job":{"id":1,"labels":[`, `{},`, `1]}}`},
		"maps in maps": {`{"ignition":{"version":"3.4.0"},"version":2,"a":[`, `{"a":{}},`, `1]}`},
		"same keys":    {"{", `"":1,`, `"b":1}`},
		"lines":        {"", "- a\n", ""},
		"nested":       {"a: ", "- ", "b"},
		"list of maps": {"a:\n", "- b: c\n", ""},
		"empty lines":  {"version: 2\n", "\n", ""},
		"returns":      {"version: 2\n", "\r", ""},
		"script":       {"write_files:\n- content: |\n", "    a\n", ""},
		"runner":       {"write_files:\n- path: " + guest.ConfigPath + "\n  content: '{\"a\":[", "1,", "1]}'\n"},
		"folded":       {"write_files:\n- content: >\n", "    a\n\n", ""},
		"flow":         {"[", "a,", "a]"},
		"flow in map":  {"a: [", "a,", "a]"},
		"colons":       {"a: ", "? ", ""},
		"comments":     {"version: 2\n", "#\n", ""},
		"comments two": {"version: 2 ", "#", "\n"},
		"documents":    {"", "---\n", ""},
		"tags":         {"a: ", "!a ", "b"},
		"anchors":      {"a: &a [1,1,1,1]\nb: &b [*a,*a,*a,*a]\nc: [", "*b,", "*b]\n"},
		"one string":   {`{"version":2,"name":"`, "a", `"}`},
		"plain words":  {"a: ", "b ", "\n"},
		"bare lines":   {"a:", "\n b", "\n"},
		"tabs":         {"a: b", "\t", "\n"},
		"number":       {`{"version":2,"name":`, "1", `}`},
		"a kubeconfig": {"apiVersion: v1\nkind: Config\ncontexts:\n", "- {name: a, context: {cluster: a}}\n", ""},
	} {
		out[name] = func(size int) string { return fill(size, parts[0], parts[1], parts[2]) }
	}

	out["packed runner"] = func(size int) string {
		return "write_files:\n- path: " + guest.ConfigPath + "\n  encoding: b64\n  content: " +
			base64.StdEncoding.EncodeToString([]byte(fill(size*2/3, `{"a":[`, `{"a":1},`, "1]}"))) + "\n"
	}

	// Long values that aliases repeat, and short values with a deep indentation.
	out["long anchors"] = func(size int) string {
		return fill(size, "a: &a "+strings.Repeat("b", size*3/4)+"\nc: [", "*a,", "*a]\n")
	}
	out["few long anchors"] = func(size int) string {
		return fill(min(size, 40000), "version: 2\nethernets: {eth0: {}}\na: &a "+strings.Repeat("b", min(size*3/4, 36000))+"\nc: [", "*a,", "*a]\n")
	}
	out["deep lines"] = func(size int) string {
		lists := min(size/4, 2000)

		return strings.Repeat("- ", lists) + "|\n" + strings.Repeat(strings.Repeat(" ", 2*lists+1)+"a\n", max(1, (size-2*lists)/(2*lists+3)))
	}
	out["deep flow"] = func(size int) string {
		lists := min(size/4, 1800)

		return fill(size, "a: "+strings.Repeat("[", lists), "bbbbbbbb,", "b"+strings.Repeat("]", lists)+"\n")
	}
	out["deep texts"] = func(size int) string {
		lists := min(size/4, 1800)

		return fill(size, "a: "+strings.Repeat("[", lists)+`"`, `\n`, `"`+strings.Repeat("]", lists)+"\n")
	}

	// Unique keys.
	out["keys"] = func(size int) string {
		var b strings.Builder
		b.WriteString(`{"k":1`)

		for i := 0; b.Len() < size-1; i++ {
			b.WriteString(`,"` + newWord(i) + `":1`)
		}

		return b.String() + "}"
	}
	out["lines of keys"] = func(size int) string {
		var b strings.Builder
		for i := 0; b.Len() < size; i++ {
			b.WriteString(newWord(i) + ":\n")
		}

		return b.String()
	}

	return out
}

// newWord returns a short text that is unique for the number.
func newWord(number int) string {
	out := []byte{'a'}
	for ; number > 0; number /= 26 {
		out = append(out, byte('a'+number%26))
	}

	return string(out)
}
