// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cli_test

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
)

// TestHelpFitsTheTerminal checks that help has no line that a terminal of 80 columns would break inside of a word.
func TestHelpFitsTheTerminal(t *testing.T) {
	t.Parallel()

	const text = `Show one thing. This sentence is longer than the terminal, and it goes on in the next line of
the source, which is one paragraph.

Usage:
  hyperfleet thing [flags]

Examples:
  hyperfleet thing --one --two --three --four --five --six --seven --eight --nine --ten \
    --eleven

Available Commands:
  doctor      Check the installation, and show each problem with its reason and its fix, if it has one

Flags:
  -h, --help              help for thing
      --endpoint string   endpoint of Proxmox VE (a host, or a URL such as https://pve.example.com:8006), or the URI
`

	const want = `Show one thing. This sentence is longer than the terminal, and it goes on in the
next line of the source, which is one paragraph.

Usage:
  hyperfleet thing [flags]

Examples:
  hyperfleet thing --one --two --three --four --five --six --seven --eight --nine --ten \
    --eleven

Available Commands:
  doctor      Check the installation, and show each problem with its reason and
              its fix, if it has one

Flags:
  -h, --help              help for thing
      --endpoint string   endpoint of Proxmox VE (a host, or a URL such as
                          https://pve.example.com:8006), or the URI
`

	if got := cli.WrapHelp(text, 80); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}

	if got := cli.WrapHelp(want, 200); !strings.Contains(got, "in the next line of the source") {
		t.Errorf("lines of a paragraph are not joined:\n%s", got)
	}

	for line := range strings.Lines(cli.WrapHelp(text, 40)) {
		if len(strings.TrimRight(line, "\n")) > 40 && !strings.Contains(line, "--two") {
			t.Errorf("longer than 40 columns: %s", line)
		}
	}
}
