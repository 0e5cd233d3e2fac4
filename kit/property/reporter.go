// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package property

import (
	"strings"
	"testing"

	"github.com/leanovate/gopter"
)

// width is the width of a line in characters. With 0, gopter would not terminate.
const width = 160

// NewReporter returns a reporter for Properties.TestingRun that writes to the test's log.
func NewReporter(t testing.TB) gopter.Reporter {
	t.Helper()

	return gopter.NewFormatedReporter(true, width, testWriter{t})
}

type testWriter struct{ t testing.TB }

func (l testWriter) Write(text []byte) (int, error) {
	l.t.Helper()

	// Move the reason to the first line, because summaries of test runs show only the first line.
	message := strings.Replace(string(text), "\n> Labels of failing property: ", " ", 1)
	l.t.Log(strings.TrimRight(message, "\n"))

	return len(text), nil
}
