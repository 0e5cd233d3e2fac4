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

// Files that tests read without importing a package say so here: what changes below the
// folder changes the packages that import the other.
func readBy() map[string][]string {
	return map[string][]string{
		"deploy": {"test/kube"},                // manifests are applied to API servers
		"docs":   {"test/guides", "hack/site"}, // documents are run, and their links followed
		"hack":   {"."},
		".":      {".", "hack/site"}, // the house tests look at everything
	}
}

// changed gives the packages whose tests could tell what has changed since a revision,
// uncommitted and new files included. They are all packages when the module's files changed.
func changed(ctx context.Context, dir, since string, packages []string) ([]string, error) {
	files, err := changedFiles(ctx, dir, since)
	if err != nil {
		return nil, err
	}

	if slices.Contains(files, "go.mod") || slices.Contains(files, "go.sum") {
		return packages, nil
	}

	tests, err := testPrograms(ctx, dir, packages)
	if err != nil {
		return nil, err
	}

	folders := map[string]bool{}
	for _, file := range files {
		folders[path.Dir(file)] = true
	}

	module, err := moduleOf(ctx, dir)
	if err != nil {
		return nil, err
	}

	return affected(module, folders, tests), nil
}

// affected gives the packages that depend on a folder. Folders without a package, such as
// testdata, belong to the nearest one above.
func affected(module string, folders map[string]bool, tests map[string]testProgram) []string {
	known := map[string]bool{}
	for _, program := range tests {
		for _, need := range program.needs {
			known[need] = true
		}
	}

	dirty := map[string]bool{module: true} // the house tests run always

	for folder := range folders {
		top, _, _ := strings.Cut(folder, "/")
		for _, by := range readBy()[top] {
			dirty[path.Join(module, by)] = true
		}

		for at := folder; ; at = path.Dir(at) {
			if pkg := path.Join(module, at); known[pkg] || at == "." {
				dirty[pkg] = true

				break
			}
		}
	}

	var out []string

	for pkg, program := range tests {
		if slices.ContainsFunc(program.needs, func(need string) bool { return dirty[need] }) {
			out = append(out, pkg)
		}
	}

	slices.Sort(out)

	return out
}

// changedFiles are those that differ from the revision, and those that git does not know.
func changedFiles(ctx context.Context, dir, since string) ([]string, error) {
	tracked, err := output(ctx, dir, "git", "diff", "--name-only", since)
	if err != nil {
		return nil, err
	}

	untracked, err := output(ctx, dir, "git", "ls-files", "--others", "--exclude-standard")
	if err != nil {
		return nil, err
	}

	return strings.Fields(tracked + untracked), nil
}

// moduleOf is the path of the module in a folder.
func moduleOf(ctx context.Context, dir string) (string, error) {
	module, err := output(ctx, dir, "go", "list", "-m")

	return strings.TrimSpace(module), err
}

func output(ctx context.Context, dir, program string, args ...string) (string, error) {
	var stderr bytes.Buffer

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Stderr = dir, &stderr

	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w: %s", program, args[0], err, strings.TrimSpace(stderr.String()))
	}

	return string(out), nil
}
