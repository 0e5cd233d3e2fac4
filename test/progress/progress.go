// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package progress

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// NewPrinter returns a function that prints a text with the seconds since NewPrinter was called. It indents
// all lines after the first.
func NewPrinter(t testing.TB) func(format string, args ...any) {
	t.Helper()

	out, began := t.Output(), time.Now()

	return func(format string, args ...any) {
		text := strings.ReplaceAll(strings.TrimSpace(fmt.Sprintf(format, args...)), "\n", "\n        ")
		fmt.Fprintf(out, "%6.1fs  %s\n", time.Since(began).Seconds(), text)
	}
}
