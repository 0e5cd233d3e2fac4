// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// From gives what prints a line, with the seconds since now before it. Further lines of
// the same text are indented below it.
func From(t testing.TB) func(format string, args ...any) {
	t.Helper()

	out, began := t.Output(), time.Now()

	return func(format string, args ...any) {
		text := strings.ReplaceAll(strings.TrimSpace(fmt.Sprintf(format, args...)), "\n", "\n        ")
		fmt.Fprintf(out, "%6.1fs  %s\n", time.Since(began).Seconds(), text)
	}
}
