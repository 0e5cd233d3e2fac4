// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"sigs.k8s.io/yaml"
)

const (
	krewFile    = "hyperfleet-krew.yaml"
	formulaFile = "hyperfleet.rb"

	homepage    = "https://github.com/hyperfleet/hyperfleet"
	description = "Run every CI job in a fresh virtual machine on your own hardware"
)

// clientArchive is the archive of the client for one platform.
type clientArchive struct {
	platform
	file, sum string
}

// writeInstallers writes an archive of the client for each platform, and a krew manifest and a Homebrew formula that
// name the archives below the URL from which users download the release. Without a URL, it writes nothing.
func (r *release) writeInstallers() error {
	if r.url == "" {
		return nil
	}

	if !strings.HasPrefix(r.url, "https://") {
		return errors.New("the URL of the files must begin with https://")
	}

	var archives []clientArchive

	for _, p := range r.programs() {
		if p.name != "hyperfleet" || p.os == "windows" {
			continue
		}

		archive, err := r.packClient(p)
		if err != nil {
			return fmt.Errorf("pack %s: %w", p.file(), err)
		}

		archives = append(archives, archive)
	}

	if err := r.writeKrewManifest(archives); err != nil {
		return err
	}

	return r.write(formulaFile, r.newFormula(archives))
}

func (r *release) packClient(p program) (clientArchive, error) {
	out := clientArchive{platform: p.platform, file: fmt.Sprintf("hyperfleet-%s-%s-%s.tgz", r.plainVersion(), p.os, p.arch)}

	err := r.pack(out.file, []entry{
		{name: "LICENSE", file: r.source("LICENSE"), mode: 0o644}, {name: "hyperfleet", file: r.file(p.file()), mode: 0o755},
	})
	if err != nil {
		return clientArchive{}, err
	}

	out.sum, err = sha256Of(r.file(out.file))

	return out, err
}

func (r *release) archiveURL(archive clientArchive) string {
	return strings.TrimSuffix(r.url, "/") + "/" + archive.file
}

// writeKrewManifest writes the manifest with which krew installs the client as `kubectl hyperfleet`.
func (r *release) writeKrewManifest(archives []clientArchive) error {
	var platforms []any

	for _, archive := range archives {
		platforms = append(platforms, map[string]any{
			"selector": map[string]any{"matchLabels": map[string]string{"os": archive.os, "arch": archive.arch}},
			"uri":      r.archiveURL(archive), "sha256": archive.sum, "bin": "hyperfleet",
			"files": []any{map[string]string{"from": "hyperfleet", "to": "."}, map[string]string{"from": "LICENSE", "to": "."}},
		})
	}

	text, err := yaml.Marshal(map[string]any{
		"apiVersion": "krew.googlecontainertools.github.com/v1alpha2", "kind": "Plugin",
		"metadata": map[string]string{"name": "hyperfleet"},
		"spec": map[string]any{
			"version": r.version, "homepage": homepage, "shortDescription": description,
			"description": "Set up, inspect and remove an installation of HyperFleet, which runs CI jobs in fresh virtual machines.\n",
			"platforms":   platforms,
		},
	})
	if err != nil {
		return err
	}

	return r.write(krewFile, string(text))
}

// newFormula returns the formula with which Homebrew installs the client.
func (r *release) newFormula(archives []clientArchive) string {
	var out strings.Builder

	fmt.Fprintf(&out, "class Hyperfleet < Formula\n  desc %q\n  homepage %q\n  version %q\n  license \"Apache-2.0\"\n",
		description, homepage, r.plainVersion())

	for _, system := range []struct{ os, block string }{{"darwin", "on_macos"}, {"linux", "on_linux"}} {
		var parts strings.Builder

		for _, archive := range archives {
			if archive.os != system.os {
				continue
			}

			block := map[string]string{"amd64": "on_intel", "arm64": "on_arm"}[archive.arch]
			fmt.Fprintf(&parts, "    %s do\n      url %q\n      sha256 %q\n    end\n", block, r.archiveURL(archive), archive.sum)
		}

		if parts.Len() > 0 {
			fmt.Fprintf(&out, "\n  %s do\n%s  end\n", system.block, parts.String())
		}
	}

	out.WriteString("\n  def install\n    bin.install \"hyperfleet\"\n" +
		"    generate_completions_from_executable(bin/\"hyperfleet\", \"completion\")\n  end\n\n" +
		"  test do\n    assert_match version.to_s, shell_output(\"#{bin}/hyperfleet version\")\n  end\nend\n")

	return out.String()
}
