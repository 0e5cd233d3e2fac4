// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestInstallers checks that the krew manifest and the formula name each archive with its checksum, and that the archives
// have the programs of the release.
func TestInstallers(t *testing.T) {
	r := newFakeRelease(t)
	r.url = "https://downloads.example.com/v1.2.3/"

	if err := r.writeInstallers(); err != nil {
		t.Fatal(err)
	}

	var krew struct {
		APIVersion, Kind string
		Metadata         struct{ Name string }
		Spec             struct {
			Version, Homepage, ShortDescription string
			Platforms                           []struct {
				Selector struct{ MatchLabels map[string]string }
				URI, Bin string
				SHA256   string
				Files    []struct{ From, To string }
			}
		}
	}
	if err := yaml.UnmarshalStrict(readFile(t, r.file(krewFile)), &struct {
		APIVersion, Kind string
		Metadata, Spec   any
	}{}); err != nil {
		t.Fatal(err)
	}

	if err := yaml.Unmarshal(readFile(t, r.file(krewFile)), &krew); err != nil {
		t.Fatal(err)
	}

	// krew accepts plug-ins with a version that begins with v, and short descriptions of at most 79 characters.
	if krew.Kind != "Plugin" || krew.Metadata.Name != "hyperfleet" || krew.Spec.Version != "v1.2.3" || len(krew.Spec.ShortDescription) > 79 {
		t.Errorf("got %+v", krew)
	}

	formula := string(readFile(t, r.file(formulaFile)))
	platforms := map[string]bool{}

	for _, p := range krew.Spec.Platforms {
		file, ok := strings.CutPrefix(p.URI, "https://downloads.example.com/v1.2.3/")
		if !ok {
			t.Fatalf("got URI %s", p.URI)
		}

		name := p.Selector.MatchLabels["os"] + "-" + p.Selector.MatchLabels["arch"]
		platforms[name] = true

		sum, err := sha256Of(r.file(file))
		if err != nil || sum != p.SHA256 {
			t.Errorf("%s has the checksum %s, and the manifest %s (%v)", file, sum, p.SHA256, err)
		}

		content := unpackArchive(t, r, file)
		if got := string(content["hyperfleet"]); got != "hyperfleet-"+name || len(content["LICENSE"]) == 0 || p.Bin != "hyperfleet" {
			t.Errorf("%s has the program %q and %d files", file, got, len(content))
		}

		if !strings.Contains(formula, "url \""+p.URI+"\"\n      sha256 \""+sum+"\"\n") {
			t.Errorf("the formula does not name %s with its checksum", file)
		}
	}

	if len(platforms) != 3 || !platforms["linux-amd64"] || !platforms["linux-arm64"] || !platforms["darwin-arm64"] {
		t.Errorf("got %v", platforms)
	}

	// Each block of the formula is closed.
	opened := len(regexp.MustCompile(`(?m)^ *(class|def)\b| do$`).FindAllString(formula, -1))
	if closed := len(regexp.MustCompile(`(?m)^ *end$`).FindAllString(formula, -1)); opened != closed {
		t.Errorf("the formula opens %d blocks and closes %d:\n%s", opened, closed, formula)
	}
}

// TestInstallersNeedAURL checks that a release without a URL has no files that name one.
func TestInstallersNeedAURL(t *testing.T) {
	r := newFakeRelease(t)
	if err := r.writeInstallers(); err != nil {
		t.Fatal(err)
	}

	if _, err := sha256Of(r.file(krewFile)); err == nil {
		t.Error("the release has a krew manifest without URLs")
	}

	r.url = "http://downloads.example.com"
	if err := r.writeInstallers(); err == nil {
		t.Error("want an error for a URL without TLS")
	}
}
