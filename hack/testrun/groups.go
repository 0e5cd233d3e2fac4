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

// group is a set of packages that one call of go test tests.
type group struct {
	packages []string
	race     bool
	// startsPrograms is true if the tests start programs, for example servers. go test does not know these
	// programs when it decides whether a cached result is valid.
	startsPrograms bool
}

// testFlags returns the flags of go test for the group. A cached result of tests that start programs is valid
// for one checkout only. The digest of the checkout is therefore part of the flag -skip, which go test compares.
// Without a digest, no cached result is used.
func (g group) testFlags(base []string, checkout string) []string {
	flags := slices.Clone(base)
	if g.race {
		flags = append(flags, "-race")
	}

	if !g.startsPrograms {
		return flags
	}

	if checkout == "" {
		return append(flags, "-count=1")
	}

	skip := "^checkout " + checkout + "$"
	flags = slices.DeleteFunc(flags, func(flag string) bool {
		pattern, isSkip := strings.CutPrefix(flag, "-skip=")
		if isSkip {
			skip = pattern + "|" + skip
		}

		return isSkip
	})

	return append(flags, "-skip="+skip)
}

// groupPackages groups the packages that have tests by two questions: do the tests run with the race detector,
// and do they start programs? The keys of racePackages are the folders of the packages that run with the race
// detector.
func groupPackages(module string, tests map[string]testProgram, racePackages map[string][]string) []group {
	var out []group

	for _, race := range []bool{false, true} {
		for _, starts := range []bool{false, true} {
			g := group{race: race, startsPrograms: starts}

			for _, pkg := range slices.Sorted(maps.Keys(tests)) {
				folder := strings.TrimPrefix(strings.TrimPrefix(pkg, module), "/")
				if _, usesRace := racePackages[folder]; usesRace == race && tests[pkg].startsPrograms == starts {
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

// filterGroups returns the groups with the wanted packages only, without empty groups.
func filterGroups(groups []group, wanted []string) []group {
	var out []group

	for _, g := range groups {
		g.packages = slices.DeleteFunc(slices.Clone(g.packages), func(pkg string) bool { return !slices.Contains(wanted, pkg) })
		if len(g.packages) > 0 {
			out = append(out, g)
		}
	}

	return out
}

// sortLike sorts the group's packages in the order of the given packages, because go test starts packages in the
// order of its arguments. A given package is an import path or a folder. All other packages come last.
func (g group) sortLike(order []string, module string) group {
	position := func(pkg string) int {
		folder := "." + strings.TrimPrefix(pkg, module)

		i := slices.IndexFunc(order, func(name string) bool { return name == pkg || name == folder })
		if i < 0 {
			return len(order)
		}

		return i
	}

	slices.SortStableFunc(g.packages, func(a, b string) int { return position(a) - position(b) })

	return g
}

// notRaced replaces the program in a line with packages that need no race detector, because no goroutines share
// their data.
const notRaced = "-"

// readRacePackages reads a file with lines of the form "PROGRAM: PACKAGE...", where each name is a folder. It
// returns the packages by program.
func readRacePackages(file string) (map[string][]string, error) {
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
		if program, packages, ok := strings.Cut(line, ":"); ok {
			out[strings.TrimSpace(program)] = append(out[strings.TrimSpace(program)], strings.Fields(packages)...)
		}
	}

	return out, nil
}

// testProgram is the test program of a package.
type testProgram struct {
	// deps are the packages that the program is built from, including the tested package.
	deps []string
	// startsPrograms is true if a package of this module in the program imports os/exec.
	startsPrograms bool
}

// listEntry is one line of the output of go list.
type listEntry struct {
	name    string
	imports []string
	deps    []string
}

// testPrograms returns the test programs of the packages that have tests, by package.
func testPrograms(ctx context.Context, dir string, packages []string) (map[string]testProgram, error) {
	// List the imports of packages in this module, and the dependencies of test programs.
	const format = `{{if .Module}}{{if .Module.Main}}{{.ImportPath}}|{{join .Imports " "}}{{end}}{{end}}` +
		`{{if not .DepOnly}}|{{join .Deps " "}}{{end}}`

	text, err := runCommand(ctx, dir, "go", append([]string{"list", "-e", "-test", "-deps", "-f", format}, packages...)...)
	if err != nil {
		return nil, err
	}

	var (
		programs []listEntry
		starters = map[string]bool{}
		lines    = bufio.NewScanner(strings.NewReader(text))
	)

	lines.Buffer(nil, len(text)+1)

	for lines.Scan() {
		name, rest, _ := strings.Cut(lines.Text(), "|")
		imports, deps, _ := strings.Cut(rest, "|")
		l := listEntry{name: name, imports: strings.Fields(imports), deps: strings.Fields(deps)}

		if slices.Contains(l.imports, "os/exec") {
			starters[packageName(name)] = true
		}

		if strings.HasSuffix(name, ".test") && !strings.Contains(name, " ") {
			programs = append(programs, l)
		}
	}

	out := map[string]testProgram{}

	for _, l := range programs {
		pkg := strings.TrimSuffix(l.name, ".test")
		program := testProgram{deps: []string{pkg}}

		for _, dep := range l.deps {
			if strings.HasPrefix(dep, "[") {
				continue
			}

			program.deps = append(program.deps, strings.TrimSuffix(dep, "_test"))
			program.startsPrograms = program.startsPrograms || starters[dep]
		}

		out[pkg] = program
	}

	return out, nil
}

// packageName returns a package's name in the output of go list without the test program it is compiled for.
func packageName(name string) string {
	name, _, _ = strings.Cut(name, " ")

	return name
}
