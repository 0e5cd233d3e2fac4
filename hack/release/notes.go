// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"strings"
)

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
	fmt.Fprintf(&out, "## Where to begin\n\nUnpack `hyperfleet-docs-%s.tgz` and open its `index.html`: *Runners* goes from these files to a first job, "+
		"*Operate* says what each file is.\n\n", r.plain())
	out.WriteString("## Check what you have downloaded\n\n    sha256sum --check --ignore-missing SHA256SUMS\n")

	if r.key != "" {
		out.WriteString("    cosign verify-blob --key release.pub --signature SHA256SUMS.sig SHA256SUMS\n")
	}

	fmt.Fprintf(&out, "\nBuilt from commit %s.\n", r.commit)

	return r.write("RELEASE_NOTES.md", out.String())
}

// section is the part of a changelog about one version; that of what is not released yet, if
// the version is a prerelease without its own.
func section(changelog, version string) (string, error) {
	wanted := []string{"## " + version}
	if strings.Contains(version, "-") {
		wanted = append(wanted, "## Unreleased")
	}

	for _, heading := range wanted {
		_, rest, found := strings.Cut("\n"+changelog, "\n"+heading)
		if !found {
			continue
		}

		_, body, _ := strings.Cut(rest, "\n")
		body, _, _ = strings.Cut(body, "\n## ")

		return strings.TrimSpace(body), nil
	}

	return "", fmt.Errorf("CHANGELOG.md has no section %q: write it before the release", wanted[0])
}
