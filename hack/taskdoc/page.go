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

// preface begins the page.
//
//go:embed preface.md
var preface string

var errNoType = errors.New("no such type")

// structure is one Go struct.
type structure struct {
	name, doc string
	fields    []field
}

// field is one field of it, by its name in the file.
type field struct {
	key, doc string
	kind     ast.Expr
}

// page makes the page from the Go files of a folder.
func page(dir string) (string, error) {
	structures, err := load(dir)
	if err != nil {
		return "", err
	}

	var out strings.Builder

	out.WriteString(preface)

	for _, root := range []struct{ title, name string }{{"The task file", "Task"}, {"The deployment configuration", "Deployment"}} {
		fmt.Fprintf(&out, "\n## %s\n", root.title)

		for _, name := range reachable(structures, root.name) {
			one, ok := structures[name]
			if !ok {
				return "", fmt.Errorf("read %s: %w: %s", dir, errNoType, name)
			}

			one.write(&out, structures)
		}
	}

	return out.String(), nil
}

// load reads the structs of a folder.
func load(dir string) (map[string]*structure, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}

	out := map[string]*structure{}

	for _, file := range files {
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", file, err)
		}

		for _, decl := range parsed.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok || general.Tok != token.TYPE {
				continue
			}

			for _, spec := range general.Specs {
				if one := read(general, spec); one != nil {
					out[one.name] = one
				}
			}
		}
	}

	return out, nil
}

// read reads one type; nil for one that is no struct.
func read(general *ast.GenDecl, spec ast.Spec) *structure {
	named, ok := spec.(*ast.TypeSpec)
	if !ok {
		return nil
	}

	body, ok := named.Type.(*ast.StructType)
	if !ok {
		return nil
	}

	out := &structure{name: named.Name.Name, doc: sentence(general.Doc, named.Name.Name)}

	for _, one := range body.Fields.List {
		if one.Tag == nil {
			continue
		}

		key := reflect.StructTag(strings.Trim(one.Tag.Value, "`")).Get("yaml")
		for _, name := range one.Names {
			out.fields = append(out.fields, field{key: key, doc: sentence(one.Doc, name.Name), kind: one.Type})
		}
	}

	return out
}

// sentence is a comment as one line, with the Go name at its beginning turned into what
// the reader knows.
func sentence(comment *ast.CommentGroup, name string) string {
	text := strings.Join(strings.Fields(comment.Text()), " ")

	for _, verb := range []string{" is ", " are ", ", ", ": "} {
		if rest, ok := strings.CutPrefix(text, name+verb); ok {
			text = rest
		}
	}

	return strings.ReplaceAll(text, "|", `\|`)
}

// reachable are the names of the structs that a file is made of, from its root on.
func reachable(structures map[string]*structure, root string) []string {
	names := []string{root}

	for i := 0; i < len(names); i++ {
		one := structures[names[i]]
		if one == nil {
			continue
		}

		for _, field := range one.fields {
			for _, name := range structsIn(field.kind, structures) {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}

		// What is any in Go has its type in its words.
		for _, field := range one.fields {
			if name := typeInWords(field, structures); name != "" && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}

	return names
}

// structsIn are the structs in a type.
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

// typeInWords is the struct that a field's comment names with "Type: string or X.".
func typeInWords(one field, structures map[string]*structure) string {
	_, after, ok := strings.Cut(one.doc, "Type: string or ")
	if !ok {
		return ""
	}

	name := strings.TrimSuffix(strings.Fields(after)[0], ".")
	if structures[name] == nil {
		return ""
	}

	return name
}

// write adds the structure's heading and its table.
func (s *structure) write(out *strings.Builder, structures map[string]*structure) {
	fmt.Fprintf(out, "\n### %s\n\n%s\n\n| field | type | meaning |\n|---|---|---|\n", s.name, s.doc)

	for _, one := range s.fields {
		doc, kind := one.doc, kindOf(one.kind, structures)

		if name := typeInWords(one, structures); name != "" {
			doc, _, _ = strings.Cut(doc, " Type: string or ")
			kind = "text or " + link(name)
		}

		if names := structsIn(one.kind, structures); doc == "" && len(names) > 0 {
			doc = structures[names[0]].doc
		}

		fmt.Fprintf(out, "| `%s` | %s | %s |\n", one.key, kind, doc)
	}
}

func link(name string) string { return fmt.Sprintf("[%s](#%s)", name, strings.ToLower(name)) }

// kindOf is a type in words.
func kindOf(kind ast.Expr, structures map[string]*structure) string {
	switch typed := kind.(type) {
	case *ast.Ident:
		if structures[typed.Name] != nil {
			return link(typed.Name)
		}

		return wordOf(typed.Name)
	case *ast.StarExpr:
		return kindOf(typed.X, structures)
	case *ast.ArrayType:
		return "list of " + kindOf(typed.Elt, structures)
	case *ast.MapType:
		return "map of " + kindOf(typed.Value, structures)
	case *ast.SelectorExpr:
		return strings.ToLower(typed.Sel.Name)
	default:
		return "anything"
	}
}

func wordOf(name string) string {
	switch name {
	case "string":
		return "text"
	case "bool":
		return "true or false"
	case "int", "int32", "int64":
		return "whole number"
	case "float32", "float64":
		return "number"
	default:
		return "anything"
	}
}
