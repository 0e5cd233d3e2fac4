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

// checkoutDigest returns a digest of everything on which tests that start programs depend: the files of the
// checkout, which include the versions of the tools in bin/, the Go version, the Debian packages, and environment
// variables that configure tests. It returns an empty string if git cannot list the files.
func checkoutDigest(ctx context.Context, dir string) string {
	files, err := runCommand(ctx, dir, "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	if err != nil {
		return ""
	}

	names := strings.Split(strings.TrimSuffix(files, "\x00"), "\x00")

	slices.Sort(names)

	sum := sha256.New()

	for _, name := range slices.Compact(names) {
		fmt.Fprintf(sum, "%s\n", name)

		// A file that was deleted since the last commit contributes only its name.
		if file, err := os.Open(filepath.Join(dir, name)); err == nil {
			_, _ = io.Copy(sum, file)
			_ = file.Close()
		}
	}

	for _, command := range [][]string{{"go", "version"}, append([]string{"dpkg-query", "-W"}, debianPackages(dir)...)} {
		// Ignore errors, because some systems do not have dpkg-query.
		text, _ := runCommand(ctx, dir, command[0], command[1:]...)
		fmt.Fprintln(sum, text)
	}

	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); slices.ContainsFunc(
			[]string{"HYPERFLEET", "PVE_", "KUBEBUILDER_ASSETS", "BUILDKITE_AGENT", "CHAOS_", "CI"},
			func(prefix string) bool { return strings.HasPrefix(name, prefix) },
		) {
			fmt.Fprintln(sum, variable)
		}
	}

	const digestLength = 12

	return hex.EncodeToString(sum.Sum(nil)[:digestLength])
}

// debianPackages returns the Debian packages in hack/packages.txt, which the tests need.
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
