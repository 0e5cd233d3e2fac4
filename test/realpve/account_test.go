// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package realpve

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCommands(t *testing.T) {
	t.Parallel()

	const guide = "# Guide\n\n## First\n\nWith one:\n\n<!-- run: TestX -->\n```sh\npvesh create /one\nkubectl x\n```\n\nWithout one, say:\n\n" +
		"```sh\npveum two\n```\n\n```yaml\na: b\n```\n\n## Second\n\n```sh\nthree\n```\n"

	for _, c := range []struct {
		heading, paragraph string
		want               []string
	}{
		{"First", "", []string{"pvesh create /one", "kubectl x", "pveum two"}},
		{"First", "With one", []string{"pvesh create /one", "kubectl x"}},
		{"First", "Without one", []string{"pveum two"}},
		{"Second", "", []string{"three"}},
		{"Third", "", nil},
	} {
		if diff := cmp.Diff(c.want, commands(guide, c.heading, c.paragraph)); diff != "" {
			t.Errorf("commands below %q after %q (-want +got):\n%s", c.heading, c.paragraph, diff)
		}
	}

	if got := onProxmox([]string{"pvesh create /one", "kubectl x"}); len(got) != 1 {
		t.Errorf("commands on Proxmox VE: %q", got)
	}
}

func TestUndo(t *testing.T) {
	t.Parallel()

	got := undo([]string{"pvesh create /pools --poolid ci", "pveum acl modify /pool/ci --users u --roles R"})
	if diff := cmp.Diff([]string{"pveum acl delete /pool/ci --users u --roles R", "pveum pool delete ci"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestSecretOfToken(t *testing.T) {
	t.Parallel()

	const printed = "┌──────────────┬──────────────────────────────────────┐\n│ full-tokenid │ hyperfleet@pve!operator              │\n" +
		"├──────────────┼──────────────────────────────────────┤\n│ value        │ 12345678-0000-4000-8000-0123456789ab │\n"

	if got := secretCell.FindStringSubmatch(printed); len(got) < 2 || got[1] != "12345678-0000-4000-8000-0123456789ab" {
		t.Errorf("found %q", got)
	}
}
