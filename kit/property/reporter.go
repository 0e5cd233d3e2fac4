// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package property

import (
	"strings"
	"testing"

	"github.com/leanovate/gopter"
)

// width of a line, in characters; gopter does not end for 0.
const width = 160

// Reporter is for Properties.TestingRun.
func Reporter(t testing.TB) gopter.Reporter {
	t.Helper()

	return gopter.NewFormatedReporter(true, width, lines{t})
}

type lines struct{ t testing.TB }

func (l lines) Write(text []byte) (int, error) {
	l.t.Helper()

	// The reason stands in the first line, which is what summaries of a run repeat.
	told := strings.Replace(string(text), "\n> Labels of failing property: ", " ", 1)
	l.t.Log(strings.TrimRight(told, "\n"))

	return len(text), nil
}
