// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package recordings_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// placeholder is a value in a recording that varies: <str:digest>, <int:time>, <num:cpu>, <varies>,
// <UPID:node:type:id:user>, <more:N> (N further rows), <repeat:c:n> (n times c). The time of a line in a log varies too,
// the number of the file that a process could not write, and
// the salt of a password.
var placeholder = regexp.MustCompile(`<(str|int|num|UPID|more|repeat):[^<>"]*>|<varies>|` +
	`\d{4}-\d\d-\d\d \d\d:\d\d:\d\d|duration \d\d:\d\d:\d\d|\.conf\.tmp\.\d+|\$5\$[./0-9A-Za-z]+\$[./0-9A-Za-z]{43}`)

var digits = regexp.MustCompile(`\d+`)

// placeholderPattern returns the regular expression of what a placeholder stands for.
func placeholderPattern(p string) string {
	if strings.HasPrefix(p, "$5$") {
		return `\$5\$[./0-9A-Za-z]+\$[./0-9A-Za-z]{43}`
	}

	if !strings.HasPrefix(p, "<") {
		return digits.ReplaceAllString(regexp.QuoteMeta(p), `[0-9]+`)
	}

	kind, value, _ := strings.Cut(strings.Trim(p, "<>"), ":")

	switch kind {
	case "int":
		return `-?[0-9]+`
	case "num":
		return `-?[0-9.e+-]+`
	case "repeat":
		char, count, _ := strings.Cut(value, ":")
		n, _ := strconv.Atoi(count)

		return regexp.QuoteMeta(strings.Repeat(char, n))
	case "UPID":
		parts := strings.SplitN(value, ":", 4)
		for i, p := range parts {
			parts[i] = regexp.QuoteMeta(p)
		}

		if len(parts) < 4 {
			return `UPID:[^ "']*`
		}

		return "UPID:" + parts[0] + `:[0-9A-F]+:[0-9A-F]+:[0-9A-F]+:` + parts[1] + ":" + parts[2] + ":" + parts[3] + ":"
	default:
		return `(?s:.*?)`
	}
}

// matchText reports whether the text is what the recorded text stands for.
func matchText(want, got string) bool {
	if want == got {
		return true
	}

	if !placeholder.MatchString(want) {
		return isSameSet(want, got)
	}

	var pattern strings.Builder

	end := 0

	for _, at := range placeholder.FindAllStringIndex(want, -1) {
		pattern.WriteString(regexp.QuoteMeta(want[end:at[0]]) + placeholderPattern(want[at[0]:at[1]]))
		end = at[1]
	}

	pattern.WriteString(regexp.QuoteMeta(want[end:]))

	re, err := regexp.Compile("^" + pattern.String() + "$")
	if err != nil { // a repeat count that is too large for a regular expression
		return strings.HasPrefix(got, want[:strings.IndexByte(want, '<')])
	}

	return re.MatchString(got)
}

// isSameSet reports whether both texts are lists of the same words. Perl's order of a set is random.
func isSameSet(want, got string) bool {
	a, b := strings.Split(want, ","), strings.Split(got, ",")
	slices.Sort(a)
	slices.Sort(b)

	return len(a) > 1 && !strings.ContainsAny(want, " =") && slices.Equal(a, b)
}

// machineFacts are the fields that depend on the recorded machine: its processor, its load, its kernel,
// its build, its resolver, its certificates.
var machineFacts = map[string]bool{
	"cpu": true, "mem": true, "memhost": true, "available": true, "cpuinfo": true, "current-kernel": true,
	"repoid": true, "pveversion": true, "snaptime": true, "loadavg": true, "dns1": true,
	"notbefore": true, "notafter": true, "public-key-bits": true, "public-key-type": true,
}

// compare adds the differences between a recorded value and the simulator's to out, each with its path.
func compare(path string, want, got any, out *[]string) {
	report := func(format string, args ...any) {
		*out = append(*out, path+": "+fmt.Sprintf(format, args...))
	}

	switch want := want.(type) {
	case map[string]any:
		fields, ok := got.(map[string]any)
		if !ok {
			report("real %s, sim %s", short(want), short(got))

			return
		}

		for _, key := range slices.Sorted(maps.Keys(want)) {
			if machineFacts[key] {
				continue
			}

			if value, ok := fields[key]; ok {
				compare(path+"."+key, want[key], value, out)
			} else {
				report("sim lacks %s: %s", key, short(want[key]))
			}
		}

		for _, key := range slices.Sorted(maps.Keys(fields)) {
			if _, ok := want[key]; !ok && !machineFacts[key] {
				report("only sim has %s: %s", key, short(fields[key]))
			}
		}
	case []any:
		rows, ok := got.([]any)
		if !ok {
			report("real %s, sim %s", short(want), short(got))

			return
		}

		compareRows(path, want, rows, out)
	case string:
		if text, ok := got.(string); ok && matchText(want, text) {
			return
		}

		if number, ok := got.(json.Number); ok && placeholder.FindString(want) == want && !strings.HasPrefix(want, "<str") &&
			matchText(want, number.String()) {
			return
		}

		if want != "<varies>" {
			report("real %s, sim %s", short(want), short(got))
		}
	default:
		if want != got {
			report("real %s, sim %s", short(want), short(got))
		}
	}
}

// compareRows compares lists whose order is random in Proxmox VE. Rows that are alike are matched first,
// then rows that have the same id, then the rest.
func compareRows(path string, want, got []any, out *[]string) {
	hasMore := false
	want = slices.DeleteFunc(slices.Clone(want), func(v any) bool {
		text, ok := v.(string)
		isMore := ok && strings.HasPrefix(text, "<more:")
		hasMore = hasMore || isMore

		return isMore
	})
	got = slices.Clone(got)

	match := func(same func(a, b any) bool, differ bool) {
		want = slices.DeleteFunc(want, func(a any) bool {
			i := slices.IndexFunc(got, func(b any) bool { return same(a, b) })
			if i < 0 {
				return false
			}

			if differ {
				compare(path+"["+rowID(a)+"]", a, got[i], out)
			}

			got = slices.Delete(got, i, i+1)

			return true
		})
	}

	match(func(a, b any) bool {
		var differences []string

		compare("", a, b, &differences)

		return len(differences) == 0
	}, false)
	match(func(a, b any) bool { return rowID(a) != "" && rowID(a) == rowID(b) }, true)

	for _, row := range want {
		*out = append(*out, fmt.Sprintf("%s: sim lacks the row %s", path, short(row)))
	}

	for _, row := range got {
		if !hasMore {
			*out = append(*out, fmt.Sprintf("%s: only sim has the row %s", path, short(row)))
		}
	}
}

// rowID returns the value that identifies a row.
func rowID(row any) string {
	fields, ok := row.(map[string]any)
	if !ok {
		return ""
	}

	for _, key := range []string{
		"volid", "vmid", "userid", "roleid", "tokenid", "groupid", "realm", "poolid", "upid", "iface", "storage", "id",
		"node", "key", "name", "n", "subdir", "path", "method", "command", "type",
	} {
		if value, ok := fields[key]; ok {
			return fmt.Sprint(value)
		}
	}

	return ""
}

func short(v any) string {
	text, _ := json.Marshal(v)
	if len(text) > 160 {
		return string(text[:160]) + "..."
	}

	return string(text)
}

// decodeJSON decodes a body with its numbers as they were written.
func decodeJSON(body []byte) (any, error) {
	var out any

	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()

	err := decoder.Decode(&out)

	return out, err
}
