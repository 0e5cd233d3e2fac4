// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
)

const notesFile = "RELEASE_NOTES.md"

// writeNotes writes the release notes: the section of the version in CHANGELOG.md, and how to verify the
// downloaded files.
func (r *release) writeNotes() error {
	text, err := os.ReadFile(r.source("CHANGELOG.md"))
	if err != nil {
		return err
	}

	section, err := sectionOf(string(text), r.plainVersion())
	if err != nil {
		return err
	}

	var out strings.Builder

	fmt.Fprintf(&out, "# HyperFleet %s\n\n%s\n\n", r.version, section)
	fmt.Fprintf(&out, "## Get started\n\nUnpack `hyperfleet-docs-%s.tgz` and open `index.html`. "+
		"The section *Runners* shows how to run a first job with these files. "+
		"The section *Operate* describes each file.\n\n", r.plainVersion())
	out.WriteString("## Verify the downloaded files\n\n    sha256sum --check --ignore-missing SHA256SUMS\n")

	if r.key != "" {
		out.WriteString("    cosign verify-blob --key release.pub --signature SHA256SUMS.sig SHA256SUMS\n")
	}

	fmt.Fprintf(&out, "\nBuilt from commit %s.\n", r.commit)

	return r.write(notesFile, out.String())
}

// sectionOf returns the section of a version in a changelog, followed by the section Unreleased, because the
// released commit has these changes too. A version must have its own section. A prerelease may have only the
// section Unreleased.
func sectionOf(changelog, version string) (string, error) {
	own, found := textBelow(changelog, version)
	latest, _ := textBelow(changelog, "Unreleased")

	if !found && !strings.Contains(version, "-") {
		return "", fmt.Errorf("CHANGELOG.md has no section \"## %s\": add it, or rename \"## Unreleased\" to this version", version)
	}

	switch {
	case latest == "":
		return own, nil
	case own == "":
		return latest, nil
	default:
		return own + "\n\n### Other changes\n\n" + latest, nil
	}
}

// textBelow returns the text of a changelog between a heading and the next heading, and false if the heading
// does not exist.
func textBelow(changelog, heading string) (string, bool) {
	_, rest, found := strings.Cut("\n"+changelog+"\n", "\n## "+heading+"\n")
	body, _, _ := strings.Cut("\n"+rest, "\n## ")

	return strings.TrimSpace(body), found
}
