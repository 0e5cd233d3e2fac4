// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hyperfleet_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"regexp"
	"strings"
	"testing"
)

// walkHop is a row of a walk: a function, and how it leads to the next one.
type walkHop struct {
	number, file, function, then string
}

// maxWalkFiles limits the files of a walk, by its number. A walk in the map also never comes back to a file that it
// has left, except for generated files, so its reader opens each file once, and its section says how long it is.
func maxWalkFiles() map[string]int { return map[string]int{"1": 15, "2": 20, "3": 14, "4": 13, "5": 8} }

// The walks of docs/reference/walks.md follow the code: each function is in its file, and is mentioned by a
// function before it on its walk, or by a place that a row before it names.
func TestWalks(t *testing.T) {
	t.Parallel()

	page, err := os.ReadFile("docs/reference/walks.md")
	if err != nil {
		t.Fatal(err)
	}

	sections := strings.Split(string(page), "\n## ")[1:]
	if len(sections) != 5 {
		t.Errorf("%d walks, want 5", len(sections))
	}

	functions := map[string]ast.Node{}

	// Only the files that the page names are parsed.
	for _, file := range regexp.MustCompile(`[\w/.-]+\.go\b`).FindAllString(strings.Join(sections, ""), -1) {
		addFunctions(t, functions, file)
	}

	for _, section := range sections {
		title, _, _ := strings.Cut(section, "\n")
		hops := readHops(section)
		checkWalk(t, title, hops, functions)

		number, _, _ := strings.Cut(title, ".")
		if limit, ok := maxWalkFiles()[number]; ok {
			files := checkWalkFiles(t, title, hops, limit)
			if count := fmt.Sprintf("\n%d functions in %d files.\n", len(hops), files); !strings.Contains(section, count) {
				t.Errorf("%s: the section does not say: %s", title, strings.TrimSpace(count))
			}
		}
	}
}

// checkWalkFiles returns the number of files of a walk.
func checkWalkFiles(t *testing.T, title string, hops []walkHop, limit int) int {
	t.Helper()

	files, current := map[string]bool{}, ""

	for _, hop := range hops {
		if hop.file != current && files[hop.file] && !strings.Contains(hop.file, "/zz_generated.") {
			t.Errorf("%s, row %s: the walk comes back to %s: move the function to the file of a row beside it",
				title, hop.number, hop.file)
		}

		files[hop.file], current = true, hop.file
	}

	if len(files) > limit {
		t.Errorf("%s: %d files, want at most %d", title, len(files), limit)
	}

	return len(files)
}

// addFunctions adds the functions of a file, under "FILE:Name" and "FILE:Type.Name", and its variables.
func addFunctions(t *testing.T, functions map[string]ast.Node, file string) {
	t.Helper()

	syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)

		return
	}

	for _, declaration := range syntax.Decls {
		switch declaration := declaration.(type) {
		case *ast.FuncDecl:
			functions[file+":"+getFunctionName(declaration)] = declaration
		case *ast.GenDecl:
			for _, spec := range declaration.Specs {
				if value, ok := spec.(*ast.ValueSpec); ok {
					functions[file+":"+value.Names[0].Name] = value
				}
			}
		}
	}
}

func readHops(section string) []walkHop {
	var out []walkHop

	row := regexp.MustCompile("(?m)^\\| (\\d+) \\| (\\S+) \\| `([^`]+)` \\| (.*) \\|$")
	for _, cells := range row.FindAllStringSubmatch(section, -1) {
		out = append(out, walkHop{number: cells[1], file: cells[2], function: cells[3], then: cells[4]})
	}

	return out
}

func checkWalk(t *testing.T, title string, hops []walkHop, functions map[string]ast.Node) {
	t.Helper()

	if len(hops) < 2 {
		t.Errorf("%s: %d rows", title, len(hops))
	}

	place := regexp.MustCompile("`([\\w/.]+\\.go:[\\w.]+)`")
	mentioned, viaObject := map[string]bool{}, true

	for _, hop := range hops {
		function := functions[hop.file+":"+hop.function]
		if function == nil {
			t.Errorf("%s, row %s: %s has no function %s", title, hop.number, hop.file, hop.function)

			continue
		}

		name := hop.function[strings.LastIndex(hop.function, ".")+1:]
		if !viaObject && !mentioned[name] {
			t.Errorf("%s, row %s: no earlier function mentions %s", title, hop.number, hop.function)
		}

		addMentioned(mentioned, function)

		for _, named := range place.FindAllStringSubmatch(hop.then, -1) {
			if functions[named[1]] == nil {
				t.Errorf("%s, row %s: %s does not exist", title, hop.number, named[1])

				continue
			}

			addMentioned(mentioned, functions[named[1]])
		}

		viaObject = strings.Contains(hop.then, "via ")
	}
}

// addMentioned adds the identifiers in a declaration, except the name of a function.
func addMentioned(mentioned map[string]bool, declaration ast.Node) {
	if function, ok := declaration.(*ast.FuncDecl); ok {
		declaration = function.Body
	}

	ast.Inspect(declaration, func(node ast.Node) bool {
		if identifier, ok := node.(*ast.Ident); ok {
			mentioned[identifier.Name] = true
		}

		return true
	})
}

// getFunctionName returns Name, or Type.Name of a method.
func getFunctionName(function *ast.FuncDecl) string {
	if function.Recv == nil {
		return function.Name.Name
	}

	receiver := function.Recv.List[0].Type
	if star, ok := receiver.(*ast.StarExpr); ok {
		receiver = star.X
	}

	if index, ok := receiver.(*ast.IndexExpr); ok {
		receiver = index.X
	}

	if name, ok := receiver.(*ast.Ident); ok {
		return name.Name + "." + function.Name.Name
	}

	return function.Name.Name
}
