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

// errProbeNotReady is returned by a probe while its process is still starting.
var errProbeNotReady = errors.New("not ready yet")

// readExports reads the `export NAME=VALUE` lines in the log of a simulator. With the option -E, a
// simulator prints these lines as soon as it listens. If one of the names is missing or empty,
// readExports returns errProbeNotReady.
func readExports(path string, names ...string) (map[string]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read exports: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read

	exports := map[string]string{}
	lines := bufio.NewScanner(file)

	for lines.Scan() {
		assignment, ok := strings.CutPrefix(lines.Text(), "export ")
		if !ok {
			continue
		}

		if name, value, ok := strings.Cut(assignment, "="); ok {
			exports[name] = unquote(value)
		}
	}

	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read exports: %w", err)
	}

	for _, name := range names {
		if exports[name] == "" {
			return nil, fmt.Errorf("read exports: %s: %w", name, errProbeNotReady)
		}
	}

	return exports, nil
}

// unquote removes the quotes around a shell word, as a POSIX shell does.
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
