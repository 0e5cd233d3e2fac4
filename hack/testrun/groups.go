// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// group is a part of a run's packages that one go test runs.
type group struct {
	packages []string
	race     bool
	// starts: its tests start programs, such as servers, that go does not see when it decides
	// whether a result still holds.
	starts bool
}

// flags are go test's for the group. A result of tests that start programs holds for one checkout: its
// digest is in a flag, which go compares. Without a digest nothing holds.
func (g group) flags(given []string, checkout string) []string {
	flags := slices.Clone(given)
	if g.race {
		flags = append(flags, "-race")
	}

	if !g.starts {
		return flags
	}

	if checkout == "" {
		return append(flags, "-count=1")
	}

	skip := "^checkout " + checkout + "$"
	flags = slices.DeleteFunc(flags, func(flag string) bool {
		pattern, is := strings.CutPrefix(flag, "-skip=")
		if is {
			skip = pattern + "|" + skip
		}

		return is
	})

	return append(flags, "-skip="+skip)
}

// split groups the packages that have tests. raced are the folders of those that run with the race detector.
func split(module string, tests map[string]testProgram, raced map[string][]string) []group {
	var out []group

	for _, race := range []bool{false, true} {
		for _, starts := range []bool{false, true} {
			g := group{race: race, starts: starts}

			for _, pkg := range slices.Sorted(maps.Keys(tests)) {
				folder := strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")
				if _, is := raced[folder]; is == race && tests[pkg].starts == starts {
					g.packages = append(g.packages, pkg)
				}
			}

			if len(g.packages) > 0 {
				out = append(out, g)
			}
		}
	}

	return out
}

// among leaves only those packages in the parts that are among the wanted.
func among(parts []group, wanted []string) []group {
	var out []group

	for _, part := range parts {
		part.packages = slices.DeleteFunc(slices.Clone(part.packages), func(pkg string) bool { return !slices.Contains(wanted, pkg) })
		if len(part.packages) > 0 {
			out = append(out, part)
		}
	}

	return out
}

// inOrder puts packages that are named first in front, as go test starts them in the order of its arguments.
// They are named by import path or by folder.
func (g group) inOrder(module string, named []string) group {
	place := func(pkg string) int {
		folder := "." + strings.TrimPrefix(pkg, module)

		i := slices.IndexFunc(named, func(name string) bool { return name == pkg || name == folder })
		if i < 0 {
			return len(named)
		}

		return i
	}

	slices.SortStableFunc(g.packages, func(a, b string) int { return place(a) - place(b) })

	return g
}

// notRaced is in the place of a program where nothing of ours runs side by side.
const notRaced = "-"

// readRaced reads a file of lines "PROGRAM: PACKAGE...", all of them folders: the packages by the program.
func readRaced(file string) (map[string][]string, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // no file, no packages
	}

	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the packages for the race detector: %w", err)
	}

	out := map[string][]string{}

	for line := range strings.Lines(string(data)) {
		line, _, _ = strings.Cut(line, "#")
		if program, packages, is := strings.Cut(line, ":"); is {
			out[strings.TrimSpace(program)] = append(out[strings.TrimSpace(program)], strings.Fields(packages)...)
		}
	}

	return out, nil
}

// testProgram is what go makes of a package's tests.
type testProgram struct {
	// needs are the packages it is made of, that of the tests included.
	needs []string
	// starts: a package of this module in it can start programs.
	starts bool
}

// listed is one line of go list.
type listed struct {
	name    string
	imports []string
	deps    []string
}

// testPrograms gives those of the packages that have tests, by the package.
func testPrograms(ctx context.Context, dir string, packages []string) (map[string]testProgram, error) {
	// Imports of this module's packages, and all that programs of tests are made of.
	const format = `{{if .Module}}{{if .Module.Main}}{{.ImportPath}}|{{join .Imports " "}}{{end}}{{end}}` +
		`{{if not .DepOnly}}|{{join .Deps " "}}{{end}}`

	text, err := output(ctx, dir, "go", append([]string{"list", "-e", "-test", "-deps", "-f", format}, packages...)...)
	if err != nil {
		return nil, err
	}

	var (
		programs []listed
		starters = map[string]bool{}
		lines    = bufio.NewScanner(strings.NewReader(text))
	)

	lines.Buffer(nil, len(text)+1)

	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), "|")
		imports, deps, _ := strings.Cut(rest, "|")
		l := listed{name: name, imports: strings.Fields(imports), deps: strings.Fields(deps)}

		if slices.Contains(l.imports, "os/exec") {
			starters[plain(name)] = true
		}

		if strings.HasSuffix(name, ".test") && !strings.Contains(name, " ") {
			programs = append(programs, l)
		}
	}

	out := map[string]testProgram{}

	for _, l := range programs {
		pkg := strings.TrimSuffix(l.name, ".test")
		program := testProgram{needs: []string{pkg}}

		for _, dep := range l.deps {
			if strings.HasPrefix(dep, "[") {
				continue
			}

			program.needs = append(program.needs, strings.TrimSuffix(dep, "_test"))
			program.starts = program.starts || starters[dep]
		}

		out[pkg] = program
	}

	return out, nil
}

// plain is a package's name without the program that it was compiled for.
func plain(name string) string {
	name, _, _ = strings.Cut(name, " ")

	return name
}
