// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
)

const notesFile = "RELEASE_NOTES.md"

// notes are what CHANGELOG.md says of the version, and how to check what was downloaded.
func (r *release) notes() error {
	text, err := os.ReadFile(r.source("CHANGELOG.md"))
	if err != nil {
		return err
	}

	section, err := section(string(text), r.plain())
	if err != nil {
		return err
	}

	var out strings.Builder

	fmt.Fprintf(&out, "# HyperFleet %s\n\n%s\n\n", r.version, section)
	fmt.Fprintf(&out, "## Where to begin\n\nUnpack `hyperfleet-docs-%s.tgz` and open its `index.html`: "+
		"*Runners* goes from these files to a first job, *Operate* says what each file is.\n\n", r.plain())
	out.WriteString("## Check what you have downloaded\n\n    sha256sum --check --ignore-missing SHA256SUMS\n")

	if r.key != "" {
		out.WriteString("    cosign verify-blob --key release.pub --signature SHA256SUMS.sig SHA256SUMS\n")
	}

	fmt.Fprintf(&out, "\nBuilt from commit %s.\n", r.commit)

	return r.write(notesFile, out.String())
}

// section is what a changelog says of one version. What stands under Unreleased is in the commit
// that is released, and so it is told, too: a prerelease needs no more than that, and a version
// has a section of its own.
func section(changelog, version string) (string, error) {
	own, found := below(changelog, version)
	latest, _ := below(changelog, "Unreleased")

	if !found && !strings.Contains(version, "-") {
		return "", fmt.Errorf("CHANGELOG.md has no section \"## %s\": write it before the release, "+
			"or name \"## Unreleased\" so if that is all of it", version)
	}

	switch {
	case latest == "":
		return own, nil
	case own == "":
		return latest, nil
	default:
		return own + "\n\n### Besides\n\n" + latest, nil
	}
}

// below is what stands below one heading of a changelog, up to the next.
func below(changelog, heading string) (string, bool) {
	_, rest, found := strings.Cut("\n"+changelog+"\n", "\n## "+heading+"\n")
	body, _, _ := strings.Cut("\n"+rest, "\n## ")

	return strings.TrimSpace(body), found
}
