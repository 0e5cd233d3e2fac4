// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// Each package with concurrent code is in a line of race.txt, and the program of that line contains the package.
func TestGoroutinesMeetTheDetector(t *testing.T) {
	t.Parallel()

	racePackages, err := readRacePackages("race.txt")
	if err != nil {
		t.Fatal(err)
	}

	place := map[string]string{}

	for program, packages := range racePackages {
		for _, pkg := range packages {
			place[pkg] = program
		}
	}

	concurrent := findConcurrentPackages(t)

	for _, pkg := range slices.Sorted(maps.Keys(concurrent)) {
		if place[pkg] == "" {
			t.Errorf("%s has concurrent code (%s): add it to the line of hack/testrun/race.txt whose program runs this code concurrently",
				pkg, concurrent[pkg])
		}
	}

	for _, pkg := range slices.Sorted(maps.Keys(place)) {
		if concurrent[pkg] == "" {
			t.Errorf("%s has no concurrent code: remove it from hack/testrun/race.txt", pkg)
		}
	}

	programs, err := testPrograms(t.Context(), root, listFolders(racePackages))
	if err != nil {
		t.Fatal(err)
	}

	module, err := moduleOf(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}

	for pkg, program := range place {
		if program != notRaced && !slices.Contains(programs[path.Join(module, program)].deps, path.Join(module, pkg)) {
			t.Errorf("the tests of %s do not import %s: move it to another line of hack/testrun/race.txt", program, pkg)
		}
	}
}

func listFolders(racePackages map[string][]string) []string {
	var out []string

	for program := range racePackages {
		if program != notRaced {
			out = append(out, "./"+program)
		}
	}

	return out
}

// findConcurrentPackages returns the folders of packages that start goroutines or protect shared data, with the position of
// the first such code.
func findConcurrentPackages(t *testing.T) map[string]string {
	t.Helper()

	out := map[string]string{}

	for _, top := range []string{
		"bridge", "cloudinit", "cmd", "guest", "hosts", "hypervisor", "identity", "kit", "networking", "platform", "runners", "workload",
	} {
		err := filepath.WalkDir(filepath.Join(root, top), func(file string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
				return err
			}

			files := token.NewFileSet()

			syntax, err := parser.ParseFile(files, file, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}

			folder, err := filepath.Rel(root, filepath.Dir(file))
			if at := findConcurrentCode(syntax); at.IsValid() && out[folder] == "" {
				out[folder] = filepath.Base(file) + ":" + strconv.Itoa(files.Position(at).Line)
			}

			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	return out
}

// findConcurrentCode finds a go statement, a call of a method Go, or a use of package sync (except sync.Once, sync.OnceValue
// and the like) or sync/atomic.
func findConcurrentCode(file *ast.File) token.Pos {
	var at token.Pos

	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			at = n.Pos()
		case *ast.CallExpr:
			if method, is := n.Fun.(*ast.SelectorExpr); is && method.Sel.Name == "Go" {
				at = n.Pos()
			}
		case *ast.SelectorExpr:
			pkg, is := n.X.(*ast.Ident)
			if is && (pkg.Name == "sync" && !strings.HasPrefix(n.Sel.Name, "Once") || pkg.Name == "atomic") {
				at = n.Pos()
			}
		}

		return !at.IsValid()
	})

	return at
}

// TestReadRacePackages: readRacePackages reports a missing file, and returns nothing without a file name.
func TestReadRacePackages(t *testing.T) {
	t.Parallel()

	if racePackages, err := readRacePackages(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Errorf("for a missing file readRacePackages returns %v", racePackages)
	}

	if racePackages, err := readRacePackages(""); err != nil || len(racePackages) != 0 {
		t.Errorf("without a file %v run with the detector, %v", racePackages, err)
	}
}
