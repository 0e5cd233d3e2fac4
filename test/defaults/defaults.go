// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package defaults

import (
	_ "embed" // the list
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// list is the list of all defaults, sorted.
//
//go:embed testdata/defaults.txt
var list string

// Setting is a field or a setting that has a default.
type Setting struct{ Name, Default string }

// Kinds returns the kinds in the list.
func Kinds() []string {
	var kinds []string

	for line := range strings.Lines(list) {
		kind, _, _ := strings.Cut(line, " | ")
		kinds = append(kinds, kind)
	}

	return slices.Compact(kinds)
}

// Check compares the settings of one kind with the list.
func Check(t testing.TB, kind string, settings []Setting) {
	t.Helper()

	var want, got []string

	for line := range strings.Lines(list) {
		if strings.HasPrefix(line, kind+" | ") {
			want = append(want, strings.TrimSpace(line))
		}
	}

	for _, setting := range settings {
		got = append(got, kind+" | "+setting.Name+" | "+setting.Default)
	}

	slices.Sort(got)

	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("the default has changed, or the setting does not exist: remove from test/defaults/testdata/defaults.txt:\n%s", line)
		}
	}

	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("a new default: add to test/defaults/testdata/defaults.txt, and name it in CHANGELOG.md:\n%s", line)
		}
	}
}

// OfStruct returns the settings of a configuration, whose names are the names of yaml.
func OfStruct(config any) []Setting { return ofStruct(reflect.ValueOf(config), "") }

func ofStruct(value reflect.Value, prefix string) []Setting {
	var out []Setting

	for field, content := range value.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("yaml"), ",")

		switch {
		case content.Kind() == reflect.Struct:
			out = append(out, ofStruct(content, prefix+name+".")...)
		case content.Kind() == reflect.Slice && field.Type.Elem().Kind() == reflect.Struct:
			for i := range content.Len() {
				out = append(out, ofStruct(content.Index(i), fmt.Sprintf("%s%s[%d].", prefix, name, i))...)
			}
		case !content.IsZero():
			out = append(out, Setting{prefix + name, formatValue(content.Interface())})
		}
	}

	return out
}

func formatValue(value any) string {
	switch value := value.(type) {
	case time.Duration:
		return formatDuration(value)
	case []string:
		return "[" + strings.Join(value, ", ") + "]"
	default:
		return fmt.Sprint(value)
	}
}

// formatDuration formats a duration without its parts that are zero: 10m, not 10m0s.
func formatDuration(d time.Duration) string {
	return regexp.MustCompile(`([mh])0[ms](0s)?$`).ReplaceAllString(d.String(), "$1")
}

// OfCommand returns the flags of a command and of its subcommands.
func OfCommand(cmd *cobra.Command) []Setting {
	var out []Setting

	cmd.LocalFlags().VisitAll(func(flag *pflag.Flag) {
		if !slices.Contains([]string{"", "[]", "false", "0", "0s"}, flag.DefValue) {
			out = append(out, Setting{cmd.CommandPath() + " --" + flag.Name, Normalize(flag.DefValue)})
		}
	})

	for _, sub := range cmd.Commands() {
		out = append(out, OfCommand(sub)...)
	}

	return out
}

var (
	// usageFlag matches a flag in the help text of package flag, and usageDefault its default.
	usageFlag    = regexp.MustCompile(`^ {2}-([\w-]+)`)
	usageDefault = regexp.MustCompile(`\(default (.*)\)$`)
)

// OfUsage returns the flags in the help text of a program that uses package flag.
func OfUsage(program, usage string) []Setting {
	var out []Setting

	name := ""

	for line := range strings.Lines(usage) {
		line = strings.TrimRight(line, "\n")
		if found := usageFlag.FindStringSubmatch(line); found != nil {
			name = found[1]
		}

		if found := usageDefault.FindStringSubmatch(line); found != nil {
			out = append(out, Setting{program + " --" + name, Normalize(strings.Trim(found[1], `"`))})
		}
	}

	return out
}

// Normalize returns the short form of a duration, and any other text unchanged.
func Normalize(text string) string {
	if d, err := time.ParseDuration(text); err == nil && text != "0" {
		return formatDuration(d)
	}

	return text
}

// CheckComments checks that comments of fields that name a default name the default of the configuration. The
// types are in the folder. A field without a comment shares the comment of the field above it.
func CheckComments(t testing.TB, folder string, config any) {
	t.Helper()

	files, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", folder, err)
	}

	comments := map[string]string{}

	for _, file := range files {
		syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}

		ast.Inspect(syntax, func(node ast.Node) bool {
			if spec, isType := node.(*ast.TypeSpec); isType {
				addComments(comments, spec)
			}

			return true
		})
	}

	checkComments(t, comments, reflect.ValueOf(config))
}

// addComments adds the comments of the fields of a struct by TYPE.FIELD.
func addComments(comments map[string]string, spec *ast.TypeSpec) {
	structure, isStruct := spec.Type.(*ast.StructType)
	if !isStruct {
		return
	}

	last := ""

	for _, field := range structure.Fields.List {
		if text := strings.Join(strings.Fields(field.Doc.Text()), " "); text != "" {
			last = text
		}

		for _, name := range field.Names {
			comments[spec.Name.Name+"."+name.Name] = last
		}
	}
}

func checkComments(t testing.TB, comments map[string]string, value reflect.Value) {
	t.Helper()

	for field, content := range value.Fields() {
		name := value.Type().Name() + "." + field.Name
		_, after, isNamed := strings.Cut(comments[name], "Default: ")

		switch {
		case content.Kind() == reflect.Struct:
			checkComments(t, comments, content)
		case content.IsZero() || content.Kind() == reflect.Slice:
		case isNamed && !slices.Contains(splitWords(after), formatValue(content.Interface())):
			t.Errorf("the comment of %s says %q, but the default is %s", name, after, formatValue(content.Interface()))
		}
	}
}

// splitWords returns the words of a comment without the commas and full stops at their ends.
func splitWords(text string) []string {
	return strings.FieldsFunc(strings.ReplaceAll(text+" ", ". ", " "), func(r rune) bool { return unicode.IsSpace(r) || r == ',' })
}

var (
	inCode      = regexp.MustCompile("`[^`]+`")
	anyIndex    = regexp.MustCompile(`\[\d*\]`)
	defaultText = regexp.MustCompile(`Default: (.*)$`)
)

// CheckPage checks that a table of the page names each setting with its default. The first column has the keys,
// and the last one has their defaults in the same order, or a text that ends with "Default: ...".
// A key may be written without the parts that it shares with the key before it.
func CheckPage(t testing.TB, page string, settings []Setting) {
	t.Helper()

	documented := readDefaults(page)

	for _, setting := range settings {
		name := anyIndex.ReplaceAllString(setting.Name, "[]")
		values := documented[name]

		for key := name; values == nil && strings.Contains(key, "."); {
			_, key, _ = strings.Cut(key, ".")
			values = documented[key]
		}

		if !slices.ContainsFunc(values, func(value string) bool { return value == setting.Default }) {
			t.Errorf("the page does not have the default %s of %s, but %q", setting.Default, setting.Name, values)
		}
	}
}

// readDefaults returns the defaults of the keys in the tables of a page.
func readDefaults(page string) map[string][]string {
	documented := map[string][]string{}

	for line := range strings.Lines(page) {
		cells := strings.Split(strings.ReplaceAll(strings.TrimSpace(line), `\|`, "¦"), "|")
		if len(cells) < 4 || !strings.HasPrefix(line, "|") {
			continue
		}

		keys := inCode.FindAllString(cells[1], -1)
		last := strings.TrimSpace(cells[len(cells)-2])

		if len(cells) > 5 && inCode.MatchString(cells[3]) {
			last = strings.TrimSpace(cells[3]) // the third column of generated pages
		} else if found := defaultText.FindStringSubmatch(last); found != nil {
			last = strings.TrimSuffix(found[1], ".")
		}

		values := []string{last}
		if len(keys) > 1 {
			values = strings.Split(last, ", ")
		}

		for i, key := range keys {
			if i < len(values) {
				key = strings.Trim(key, "`")
				value, _, _ := strings.Cut(strings.TrimPrefix(values[i], "`"), "`")
				documented[key] = append(documented[key], Normalize(value))
			}
		}
	}

	return documented
}
