// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package jobs

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// FuzzSafe checks that names and logs of jobs cannot control the terminal.
func FuzzSafe(f *testing.F) {
	f.Add("\x1b[31mred\x1b[0m\x07 \x1b]0;title\x07 \u202e")
	f.Add("\x1b[")
	f.Add("\x1b[12;\x1b[3mé")
	f.Fuzz(func(t *testing.T, text string) {
		got := cli.Sanitize(text)
		if strings.ContainsAny(got, "\x1b\x07\x08\r\x7f\u009b\u202e") || len(got) > 3*len(text) {
			t.Errorf("Safe(%q) = %q", text, got)
		}

		if strings.ContainsAny(cli.SanitizeLine(text), "\n\t") {
			t.Errorf("Line(%q) = %q", text, cli.SanitizeLine(text))
		}
	})
}
