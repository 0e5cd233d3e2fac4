// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"
)

// errNotYet is the answer of a probe whose process is still on its way.
var errNotYet = errors.New("not ready yet")

// readExports reads the shell exports that a simulator's option -E prints once it
// listens, out of the log it prints them to. All wanted names must be there.
func readExports(path string, want ...string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read exports: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read

	found := map[string]string{}
	lines := bufio.NewScanner(file)

	for lines.Scan() {
		assignment, ok := strings.CutPrefix(lines.Text(), "export ")
		if !ok {
			continue
		}

		if name, value, ok := strings.Cut(assignment, "="); ok {
			found[name] = unquote(value)
		}
	}

	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read exports: %w", err)
	}

	for _, name := range want {
		if found[name] == "" {
			return nil, fmt.Errorf("read exports: %s: %w", name, errNotYet)
		}
	}

	return found, nil
}

// unquote takes a shell word's quotes away, as a POSIX shell would.
func unquote(word string) string {
	if len(word) >= 2 && (word[0] == '\'' || word[0] == '"') && word[len(word)-1] == word[0] {
		inner := word[1 : len(word)-1]
		if word[0] == '\'' {
			return strings.ReplaceAll(inner, `'\''`, "'")
		}

		return inner
	}

	return word
}
