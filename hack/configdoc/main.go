// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed" // preface.md
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

const (
	sources   = "api/config/v1alpha1"
	help      = sources + "/zz_generated.help.go"
	reference = "docs/reference/config.md"
)

// preface is the text before the table of keys.
//
//go:embed preface.md
var preface string

func main() {
	if err := run("."); err != nil {
		fmt.Fprintln(os.Stderr, "configdoc:", err)
		os.Exit(1)
	}
}

// run writes both files of the repository in the folder root.
func run(root string) error {
	comments, err := parseComments(filepath.Join(root, sources))
	if err != nil {
		return err
	}

	keys := listKeys(defaultConfig(), "", comments)

	code, err := renderHelp(keys)
	if err != nil {
		return err
	}

	for name, text := range map[string]string{help: code, reference: renderPage(keys)} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}

	return nil
}

func defaultConfig() reflect.Value { return reflect.ValueOf(v1alpha1.Default()) }

// comments has the comments of struct fields, by type and field.
type comments map[[2]string]string

// parseComments parses the comments of all structs in a folder.
func parseComments(dir string) (comments, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}

	out := comments{}

	for _, file := range files {
		syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", file, err)
		}

		ast.Inspect(syntax, func(node ast.Node) bool {
			if spec, ok := node.(*ast.TypeSpec); ok {
				if structure, ok := spec.Type.(*ast.StructType); ok {
					out.add(spec.Name.Name, structure)
				}
			}

			return true
		})
	}

	return out, nil
}

// add adds the comments of a struct. A field without a comment gets the comment of the previous field if
// this comment names the field, as in "CertFile and KeyFile serve TLS".
func (c comments) add(name string, structure *ast.StructType) {
	last := ""

	for _, field := range structure.Fields.List {
		text := strings.Join(strings.Fields(field.Doc.Text()), " ")

		for _, ident := range field.Names {
			if text == "" && regexp.MustCompile(`\b`+ident.Name+`\b`).MatchString(last) {
				text = last
			}

			c[[2]string{name, ident.Name}] = text
		}

		last = text
	}
}

// key is one configuration key, with its type, default and description.
type key struct{ name, kind, value, text string }

// listKeys returns the keys of a struct and of its nested structs, in the order of the fields.
func listKeys(value reflect.Value, prefix string, from comments) []key {
	var out []key

	names := map[string]string{}

	for i := range value.NumField() {
		field := value.Type().Field(i)
		names[field.Name] = field.Tag.Get("yaml")
	}

	for i := range value.NumField() {
		field := value.Type().Field(i)
		name := prefix + names[field.Name]
		text := from[[2]string{value.Type().Name(), field.Name}]

		if field.Type.Kind() == reflect.Struct {
			out = append(out, listKeys(value.Field(i), name+".", from)...)

			continue
		}

		if name == "apiVersion" || name == "kind" {
			continue
		}

		out = append(out, key{name, describeType(field.Type), formatDefault(value.Field(i)), replaceFieldNames(text, names)})
	}

	return out
}

var fieldName = regexp.MustCompile(`\b[A-Z]\w+\b`)

// replaceFieldNames replaces the names of Go fields in a text with the names of the keys in the file.
func replaceFieldNames(text string, names map[string]string) string {
	return fieldName.ReplaceAllStringFunc(text, func(name string) string {
		if key, ok := names[name]; ok {
			return key
		}

		return name
	})
}

func describeType(valueType reflect.Type) string {
	switch {
	case valueType == reflect.TypeFor[time.Duration]():
		return "duration"
	case valueType.Kind() == reflect.Slice:
		return "list"
	case valueType.Kind() == reflect.Map:
		return "map"
	case valueType.Kind() == reflect.String:
		return "string"
	case valueType.Kind() == reflect.Bool:
		return "boolean"
	default:
		return "number"
	}
}

func formatDefault(value reflect.Value) string {
	if value.IsZero() && value.Kind() != reflect.Int && value.Kind() != reflect.Bool {
		return ""
	}

	if list, ok := value.Interface().([]string); ok {
		return "`[" + strings.Join(list, ", ") + "]`"
	}

	return fmt.Sprintf("`%v`", value.Interface())
}

// renderPage returns the page with a table of all keys.
func renderPage(keys []key) string {
	var out strings.Builder

	out.WriteString(preface)

	for _, k := range keys {
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", k.name, k.kind, k.value, strings.ReplaceAll(k.text, "|", `\|`))
	}

	return out.String()
}

// sentenceEnd matches the end of a sentence but not the end of an abbreviation.
var sentenceEnd = regexp.MustCompile(`\. [A-Z]`)

// renderHelp returns the Go file with the function Help, which has the first sentence of each comment. The
// operator uses these sentences as the help texts of its flags.
func renderHelp(keys []key) (string, error) {
	var out strings.Builder

	out.WriteString("// Code generated by hack/configdoc. DO NOT EDIT.\n\n" +
		"// Copyright The HyperFleet Authors.\n// SPDX-License-Identifier: Apache-2.0\n\npackage v1alpha1\n\n" +
		"// Help returns a one-sentence description of each key.\nfunc Help() map[string]string {\n\treturn map[string]string{\n")

	for _, k := range slices.SortedFunc(slices.Values(keys), func(a, b key) int { return strings.Compare(a.name, b.name) }) {
		sentence := k.text
		if end := sentenceEnd.FindStringIndex(sentence); end != nil {
			sentence = sentence[:end[0]]
		}

		if sentence = strings.TrimSuffix(sentence, "."); sentence != "" {
			fmt.Fprintf(&out, "\t\t%q: %q,\n", k.name, sentence)
		}
	}

	out.WriteString("\t}\n}\n")

	code, err := format.Source([]byte(out.String()))
	if err != nil {
		return "", fmt.Errorf("format %s: %w", help, err)
	}

	return string(code), nil
}
