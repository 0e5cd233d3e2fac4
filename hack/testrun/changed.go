// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// fileReaders returns the packages that read files of a folder without importing a package from it. A change in
// the folder affects all tests that depend on these packages.
func fileReaders() map[string][]string {
	return map[string][]string{
		"deploy": {"test/kube"},                // applies manifests to API servers
		"docs":   {"test/guides", "hack/site"}, // run the commands in documents and check their links
		"hack":   {"."},
		".":      {".", "hack/site"}, // the house tests read all files
	}
}

// changedPrograms returns the test programs that depend on files that have changed since a revision. Changed
// files include uncommitted and untracked files. If go.mod or go.sum has changed, it returns all programs.
func changedPrograms(
	ctx context.Context, dir, since, module string, tests map[string]testProgram,
) (map[string]testProgram, error) {
	files, err := changedFiles(ctx, dir, since)
	if err != nil {
		return nil, err
	}

	if slices.Contains(files, "go.mod") || slices.Contains(files, "go.sum") {
		return tests, nil
	}

	changedFolders := map[string]bool{}
	for _, file := range files {
		changedFolders[path.Dir(file)] = true
	}

	out := map[string]testProgram{}
	for _, pkg := range affectedPackages(module, changedFolders, tests) {
		out[pkg] = tests[pkg]
	}

	return out, nil
}

// affectedPackages returns the packages whose tests depend on one of the folders. A folder without a package,
// for example testdata, belongs to the nearest parent folder with a package. The house tests in the root
// folder are always affected.
func affectedPackages(module string, folders map[string]bool, tests map[string]testProgram) []string {
	known := map[string]bool{}
	for _, program := range tests {
		for _, need := range program.deps {
			known[need] = true
		}
	}

	dirty := map[string]bool{module: true} // the house tests always run

	for folder := range folders {
		top, _, _ := strings.Cut(folder, "/")
		for _, reader := range fileReaders()[top] {
			dirty[path.Join(module, reader)] = true
		}

		for dir := folder; ; dir = path.Dir(dir) {
			if pkg := path.Join(module, dir); known[pkg] || dir == "." {
				dirty[pkg] = true

				break
			}
		}
	}

	var out []string

	for pkg, program := range tests {
		if slices.ContainsFunc(program.deps, func(need string) bool { return dirty[need] }) {
			out = append(out, pkg)
		}
	}

	slices.Sort(out)

	return out
}

// changedFiles returns the files that differ from the revision, and the untracked files.
func changedFiles(ctx context.Context, dir, since string) ([]string, error) {
	tracked, err := runCommand(ctx, dir, "git", "diff", "--name-only", since)
	if err != nil {
		return nil, err
	}

	untracked, err := runCommand(ctx, dir, "git", "ls-files", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}

	return strings.Fields(tracked + untracked), nil
}

// moduleOf returns the path of the Go module in a folder.
func moduleOf(ctx context.Context, dir string) (string, error) {
	module, err := runCommand(ctx, dir, "go", "list", "-m")

	return strings.TrimSpace(module), err
}

func runCommand(ctx context.Context, dir, program string, args ...string) (string, error) {
	var stderr bytes.Buffer

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stderr = dir, &stderr

	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w: %s", program, args[0], err, strings.TrimSpace(stderr.String()))
	}

	return string(out), nil
}
