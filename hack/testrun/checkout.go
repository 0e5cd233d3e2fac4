// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// checkoutDigest stands for all that tests which start programs depend on: the files of the checkout (which name
// the versions of the tools in bin/, too), Go, Debian's packages, and the environment's names of servers. It is
// empty where git does not tell the files.
func checkoutDigest(ctx context.Context, dir string) string {
	files, err := output(ctx, dir, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	if err != nil {
		return ""
	}

	names := strings.Split(strings.TrimSuffix(files, "\x00"), "\x00")

	slices.Sort(names)

	sum := sha256.New()

	for _, name := range slices.Compact(names) {
		fmt.Fprintf(sum, "%s\n", name)

		// A file that was removed since the last commit is one too.
		if file, err := os.Open(filepath.Join(dir, name)); err == nil {
			_, _ = io.Copy(sum, file)
			_ = file.Close()
		}
	}

	for _, command := range [][]string{{"go", "version"}, append([]string{"dpkg-query", "-W"}, debianPackages(dir)...)} {
		// Not every system has Debian's packages.
		said, _ := output(ctx, dir, command[0], command[1:]...)
		fmt.Fprintln(sum, said)
	}

	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); slices.ContainsFunc(
			[]string{"HYPERFLEET", "PVE_", "KUBEBUILDER_ASSETS", "BUILDKITE_AGENT", "CHAOS_", "CI"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) },
		) {
			fmt.Fprintln(sum, variable)
		}
	}

	const enough = 12

	return hex.EncodeToString(sum.Sum(nil)[:enough])
}

// debianPackages are those that the tests need.
func debianPackages(dir string) []string {
	list, err := os.ReadFile(filepath.Join(dir, "hack", "packages.txt"))
	if err != nil {
		return nil
	}

	var out []string

	for line := range strings.Lines(string(list)) {
		if fields := strings.Fields(line); len(fields) > 0 && fields[0] != "#" {
			out = append(out, fields[0])
		}
	}

	return out
}
