// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	_ "embed" // preface.md
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
)

// preface is the text before the first type.
//
//go:embed preface.md
var preface string

var errNoType = errors.New("no such type")

// structure is one Go struct.
type structure struct {
	name, doc string
	fields    []field
}

// field is one field of a struct. key is its name in the file.
type field struct {
	key, doc string
	kind     ast.Expr
}

// renderPage returns the page for the Go files in a folder.
func renderPage(dir string) (string, error) {
	structures, err := parseStructures(dir)
	if err != nil {
		return "", err
	}

	var out strings.Builder

	out.WriteString(preface)

	for _, root := range []struct{ title, name string }{{"The task file", "Task"}, {"The deployment configuration", "Deployment"}} {
		fmt.Fprintf(&out, "\n## %s\n", root.title)

		for _, name := range reachableStructures(structures, root.name) {
			s, ok := structures[name]
			if !ok {
				return "", fmt.Errorf("read %s: %w: %s", dir, errNoType, name)
			}

			s.write(&out, structures)
		}
	}

	return out.String(), nil
}

// parseStructures parses the structs in a folder.
func parseStructures(dir string) (map[string]*structure, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}

	out := map[string]*structure{}

	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", file, err)
		}

		for _, decl := range parsed.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok || general.Tok != token.TYPE {
				continue
			}

			for _, spec := range general.Specs {
				if s := newStructure(general, spec); s != nil {
					out[s.name] = s
				}
			}
		}
	}

	return out, nil
}

// newStructure returns the struct of a type declaration, and nil if the type is not a struct.
func newStructure(general *ast.GenDecl, spec ast.Spec) *structure {
	named, ok := spec.(*ast.TypeSpec)
	if !ok {
		return nil
	}

	body, ok := named.Type.(*ast.StructType)
	if !ok {
		return nil
	}

	out := &structure{name: named.Name.Name, doc: descriptionOf(general.Doc, named.Name.Name)}

	for _, astField := range body.Fields.List {
		if astField.Tag == nil {
			continue
		}

		key := reflect.StructTag(strings.Trim(astField.Tag.Value, "`")).Get("yaml")
		for _, name := range astField.Names {
			out.fields = append(out.fields, field{key: key, doc: descriptionOf(astField.Doc, name.Name), kind: astField.Type})
		}
	}

	return out
}

// descriptionOf returns a comment as one line. It removes the Go name at the beginning of the comment, with
// the verb "is" or "are", because readers of the page know only the name in the file.
func descriptionOf(comment *ast.CommentGroup, name string) string {
	text := strings.Join(strings.Fields(comment.Text()), " ")

	for _, verb := range []string{" is ", " are ", ", ", ": ", " "} {
		if rest, ok := strings.CutPrefix(text, name+verb); ok {
			text = rest
		}
	}

	return strings.ReplaceAll(text, "|", `\|`)
}

// reachableStructures returns the names of the structs that can occur in a file, starting with its root.
func reachableStructures(structures map[string]*structure, root string) []string {
	names := []string{root}

	for i := 0; i < len(names); i++ {
		s := structures[names[i]]
		if s == nil {
			continue
		}

		for _, field := range s.fields {
			for _, name := range structsIn(field.kind, structures) {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}

		// The comment of a field of type any names its struct.
		for _, field := range s.fields {
			if name := structInComment(field, structures); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}

	return names
}

// structsIn returns the names of the structs in a type expression.
func structsIn(kind ast.Expr, structures map[string]*structure) []string {
	switch typed := kind.(type) {
	case *ast.Ident:
		if structures[typed.Name] != nil {
			return []string{typed.Name}
		}
	case *ast.StarExpr:
		return structsIn(typed.X, structures)
	case *ast.ArrayType:
		return structsIn(typed.Elt, structures)
	case *ast.MapType:
		return structsIn(typed.Value, structures)
	}

	return nil
}

// structInComment returns the struct that the comment of a field names in the form "Type: string or X.". It
// returns an empty string if the comment has no such text.
func structInComment(f field, structures map[string]*structure) string {
	_, typeText, ok := strings.Cut(f.doc, "Type: string or ")
	if !ok {
		return ""
	}

	name := strings.TrimSuffix(strings.Fields(typeText)[0], ".")
	if structures[name] == nil {
		return ""
	}

	return name
}

// write writes the heading, the description and the table of the struct.
func (s *structure) write(out *strings.Builder, structures map[string]*structure) {
	fmt.Fprintf(out, "\n### %s\n\n%s\n\n| field | type | meaning |\n|---|---|---|\n", s.name, s.doc)

	for _, f := range s.fields {
		doc, kind := f.doc, describeType(f.kind, structures)

		if name := structInComment(f, structures); name != "" {
			doc, _, _ = strings.Cut(doc, " Type: string or ")
			kind = "string or " + formatLink(name)
		}

		if names := structsIn(f.kind, structures); doc == "" && len(names) > 0 {
			doc = structures[names[0]].doc
		}

		fmt.Fprintf(out, "| `%s` | %s | %s |\n", f.key, kind, doc)
	}
}

func formatLink(name string) string { return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name)) }

// describeType returns the name of a type for readers who do not know Go.
func describeType(kind ast.Expr, structures map[string]*structure) string {
	switch typed := kind.(type) {
	case *ast.Ident:
		if structures[typed.Name] != nil {
			return formatLink(typed.Name)
		}

		return describeBasicType(typed.Name)
	case *ast.StarExpr:
		return describeType(typed.X, structures)
	case *ast.ArrayType:
		return "list of " + describeType(typed.Elt, structures)
	case *ast.MapType:
		return "map of " + describeType(typed.Value, structures)
	case *ast.SelectorExpr:
		return strings.ToLower(typed.Sel.Name)
	default:
		return "anything"
	}
}

func describeBasicType(name string) string {
	switch name {
	case "string":
		return "string"
	case "bool":
		return "boolean"
	case "int", "int32", "int64":
		return "integer"
	case "float32", "float64":
		return "number"
	default:
		return "anything"
	}
}
