// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// newFakeRelease returns a release with fake programs of a few bytes.
func newFakeRelease(t *testing.T) *release {
	t.Helper()

	r := &release{
		root: "../..", dist: t.TempDir(), version: "v1.2.3", commit: "abc", registry: "registry.example.com/fleet",
		time: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), arch: []string{"amd64", "arm64"},
		clients: []platform{{"darwin", "arm64"}, {"windows", "amd64"}},
	}

	for _, one := range r.programs() {
		if err := os.WriteFile(r.file(one.file()), []byte(one.file()), 0o755); err != nil {
			t.Fatal(err)
		}
	}

	return r
}

// unpackArchive returns the files in a compressed tar file of the release.
func unpackArchive(t *testing.T, r *release, name string) map[string][]byte {
	t.Helper()

	packed, err := gzip.NewReader(bytes.NewReader(readFile(t, r.file(name))))
	if err != nil {
		t.Fatal(err)
	}

	return readTar(t, packed)
}

// readTar returns the files in a tar file.
func readTar(t *testing.T, in io.Reader) map[string][]byte {
	t.Helper()

	out := map[string][]byte{}

	for archive := tar.NewReader(in); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}

		if err != nil {
			t.Fatal(err)
		}

		if out[header.Name], err = io.ReadAll(archive); err != nil {
			t.Fatal(err)
		}
	}
}

func readFile(t *testing.T, file string) []byte {
	t.Helper()

	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	return data
}

// TestImages checks that images have both architectures, an unprivileged user, CA certificates and their programs, and
// that they are reproducible.
func TestImages(t *testing.T) {
	r, again := newFakeRelease(t), newFakeRelease(t)
	for _, one := range []*release{r, again} {
		if err := one.writeImages(); err != nil {
			t.Fatal(err)
		}
	}

	const archive = "hyperfleet-v1.2.3.oci.tar"

	for _, name := range imageNames() {
		readFile(t, r.file(name+"-v1.2.3.oci.tar"))
	}

	data := readFile(t, r.file(archive))
	if !bytes.Equal(data, readFile(t, again.file(archive))) {
		t.Error("the same release has other images")
	}

	files := readTar(t, bytes.NewReader(data))
	blob := func(digest string) []byte { return files["blobs/"+strings.Replace(digest, ":", "/", 1)] }

	type descriptor struct {
		Digest      string
		Annotations map[string]string
		Platform    struct{ Architecture string }
	}

	var index, both struct{ Manifests []descriptor }

	decode(t, files["index.json"], &index)
	decode(t, blob(index.Manifests[0].Digest), &both)

	if got := index.Manifests[0].Annotations["io.containerd.image.name"]; got != "registry.example.com/fleet/hyperfleet:v1.2.3" {
		t.Errorf("the image is named %s", got)
	}

	if len(both.Manifests) != len(r.arch) {
		t.Fatalf("%d architectures", len(both.Manifests))
	}

	for _, one := range both.Manifests {
		var manifest struct {
			Config descriptor
			Layers []descriptor
		}

		var config struct {
			Architecture string
			Config       struct {
				User       string
				Entrypoint []string
				Labels     map[string]string
			} `json:"config"`
		}

		decode(t, blob(one.Digest), &manifest)
		decode(t, blob(manifest.Config.Digest), &config)

		if config.Config.User != "65532:65532" || config.Architecture != one.Platform.Architecture ||
			config.Config.Labels["org.opencontainers.image.version"] != "v1.2.3" {
			t.Errorf("%+v", config)
		}

		inside := map[string][]byte{}

		for _, layer := range manifest.Layers {
			packed, err := gzip.NewReader(bytes.NewReader(blob(layer.Digest)))
			if err != nil {
				t.Fatal(err)
			}

			maps.Copy(inside, readTar(t, packed))
		}

		if got := string(inside["usr/local/bin/hyperfleet"]); got != "hyperfleet-linux-"+one.Platform.Architecture {
			t.Errorf("the image for %s has the program %s", one.Platform.Architecture, got)
		}

		if string(inside["opt/hyperfleet/bootstrap-service-x64"]) != "bootstrap-service-linux-amd64" ||
			string(inside["opt/hyperfleet/bootstrap-service-arm64"]) != "bootstrap-service-linux-arm64" {
			t.Error("it lacks the bootstrap service")
		}

		if pool := x509.NewCertPool(); !pool.AppendCertsFromPEM(inside["etc/ssl/certs/ca-certificates.crt"]) {
			t.Error("the image has no CA certificates")
		}
	}
}

func decode(t *testing.T, data []byte, into any) {
	t.Helper()

	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v: %s", err, data)
	}
}

// TestCharts checks that charts have the version, the registry, and the files behind their symbolic links.
func TestCharts(t *testing.T) {
	r := newFakeRelease(t)
	if err := r.packCharts(); err != nil {
		t.Fatal(err)
	}

	files := unpackArchive(t, r, "hyperfleet-1.2.3.tgz")

	for name, want := range map[string]string{
		"hyperfleet/Chart.yaml": "\nversion: 1.2.3\nappVersion: v1.2.3\n", "hyperfleet/values.yaml": "\n  repository: registry.example.com/fleet/hyperfleet\n",
		"hyperfleet/files/base/deployment.yaml": "kind: Deployment", "hyperfleet/files/rbac/runners.yaml": "kind: ClusterRole",
	} {
		if !strings.Contains(string(files[name]), want) {
			t.Errorf("%s has no %q", name, want)
		}
	}
}

// TestManifests checks that manifests have the full names of images.
func TestManifests(t *testing.T) {
	r := newFakeRelease(t)
	if err := r.writeManifests(); err != nil {
		t.Fatal(err)
	}

	for name, image := range map[string]string{
		"hyperfleet.yaml": "hyperfleet", "hyperfleet-bridge.yaml": "hyperfleet", "hyperfleet-platform.yaml": "hyperfleet-platform",
	} {
		text := string(readFile(t, r.file(name)))
		if !strings.Contains(text, "image: registry.example.com/fleet/"+image+":v1.2.3\n") || bareImage.MatchString(text) {
			t.Errorf("%s does not name its image in full", name)
		}
	}

	if text := string(readFile(t, r.file("hyperfleet-crds.yaml"))); strings.Count(text, "\nkind: CustomResourceDefinition\n") < 10 {
		t.Error("hyperfleet-crds.yaml lacks kinds")
	}
}

// TestDeploy checks that the archive has the files in deploy/ to which the documentation refers, and no charts.
func TestDeploy(t *testing.T) {
	r := newFakeRelease(t)
	if err := r.packDeploy(); err != nil {
		t.Fatal(err)
	}

	const folder = "hyperfleet-deploy-1.2.3/deploy/"

	files := unpackArchive(t, r, "hyperfleet-deploy-1.2.3.tgz")

	for name, want := range map[string]string{
		"base/deployment.yaml": "image: registry.example.com/fleet/hyperfleet:v1.2.3\n", "samples/start/fleet.yaml": "kind: RunnerPool",
		"monitoring/dashboards/hyperfleet-overview.json": "{", "namespace-secrets/role.yaml": "kind: Role", "proxmox/make-template.sh": "#!/usr/bin/env bash",
		"proxmox/packer/windows/windows.pkr.hcl": `source "proxmox-iso"`, "proxmox/customize.ps1": "Install-BootstrapService",
		"webhooks-tls/kustomization.yaml": "kind: Component", "shards/roles.yaml": "kind: ClusterRole",
	} {
		if !strings.Contains(string(files[folder+name]), want) {
			t.Errorf("%s has no %q", name, want)
		}
	}

	for name := range files {
		if strings.HasPrefix(name, folder+"charts/") || strings.HasSuffix(name, ".go") {
			t.Errorf("it has %s", name)
		}
	}
}

// TestReleaseKeepsOtherFiles checks that a release replaces an earlier release in its folder, and no other files.
func TestReleaseKeepsOtherFiles(t *testing.T) {
	r := newFakeRelease(t)
	if err := errors.Join(r.write(sumsFile, ""), r.write(notesFile, ""), r.emptyDist()); err != nil {
		t.Error(err)
	}

	if left, err := os.ReadDir(r.dist); err != nil || len(left) > 0 {
		t.Errorf("%v is left (%v)", left, err)
	}

	if err := r.write("thesis.tex", "chapter 1"); err != nil {
		t.Fatal(err)
	}

	if err := r.emptyDist(); err == nil || !strings.Contains(err.Error(), "thesis.tex") {
		t.Errorf("the release replaced a folder with other files: %v", err)
	}

	if got := string(readFile(t, r.file("thesis.tex"))); got != "chapter 1" {
		t.Errorf("it has %q", got)
	}
}

// TestSite checks that the release has the documentation site of its version.
func TestSite(t *testing.T) {
	r := newFakeRelease(t)
	if err := r.packSite(t.Context()); err != nil {
		t.Fatal(err)
	}

	files := unpackArchive(t, r, "hyperfleet-docs-1.2.3.tgz")

	if page := string(files["hyperfleet-docs-1.2.3/index.html"]); !strings.Contains(page, `<span class="version">v1.2.3</span>`) {
		t.Errorf("the site does not name its version:\n%s", page)
	}

	if files["hyperfleet-docs-1.2.3/docs/start/runners.html"] == nil || files["hyperfleet-docs-1.2.3/search-index.js"] == nil {
		t.Error("the site lacks pages")
	}
}

// TestManualPages checks that the release has a page for each command, with its version and date, and that the page of
// a program names its subcommands.
func TestManualPages(t *testing.T) {
	r, again := newFakeRelease(t), newFakeRelease(t)
	if err := r.packManualPages(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Neither the time zone nor the environment changes the pages.
	t.Setenv("TZ", "Pacific/Kiritimati")
	t.Setenv("HYPERFLEET_TASK_CONFIG", "/of/the/builder")

	const archive, folder = "hyperfleet-man-1.2.3.tgz", "share/man/man1/"

	if err := again.packManualPages(t.Context()); err != nil {
		t.Fatal(err)
	}

	if !bytes.Equal(readFile(t, r.file(archive)), readFile(t, again.file(archive))) {
		t.Error("the same release has other pages")
	}

	files := unpackArchive(t, r, archive)

	for program, commands := range map[string]string{
		"hyperfleet":          "operator init doctor hosts jobs job addresses provider shell console top web uninstall version completion",
		"hyperfleet-platform": "adapter api migrate sentinel sweep version completion",
	} {
		page := string(files[folder+program+".1"])

		for command := range strings.FieldsSeq(commands) {
			name := program + "-" + command
			if files[folder+name+".1"] == nil || !strings.Contains(page, name+"(1)") {
				t.Errorf("%s has no page, or the page of %s does not name it", name, program)
			}
		}

		for file := range files {
			command, isPage := strings.CutPrefix(strings.TrimSuffix(file, ".1"), folder+program+"-")
			if isPage && !strings.Contains(command, "-") && command != "platform" && !slices.Contains(strings.Fields(commands), command) {
				t.Errorf("this test does not have the command %s of %s", command, program)
			}
		}

		if title := `.TH "` + strings.ToUpper(program) + `" "1" "Jan 2026" "HyperFleet v1.2.3" "HyperFleet Manual"`; !strings.Contains(page, title) {
			t.Errorf("the page of %s has another title:\n%s", program, page)
		}
	}

	if page := string(files[folder+"hyperfleet-hosts-diff.1"]); !strings.Contains(page, `\fB-o\fP, \fB--output\fP="table"`) {
		t.Errorf("a page lacks its flags:\n%s", page)
	}
}

// TestSignature checks that cosign and openssl can verify the signature, and that it is deterministic.
func TestSignature(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	r := newFakeRelease(t)
	r.key = filepath.Join(t.TempDir(), "key")

	if err := os.WriteFile(r.key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}), 0o600); err != nil {
		t.Fatal(err)
	}

	var made []string

	for range 2 {
		if err := errors.Join(r.write(sumsFile, "sums"), r.sign()); err != nil {
			t.Fatal(err)
		}

		made = append(made, string(readFile(t, r.file(signatureFile))))
	}

	signature, err := base64.StdEncoding.DecodeString(strings.TrimSpace(made[0]))
	if digest := sha256.Sum256([]byte("sums")); err != nil || !ecdsa.VerifyASN1(&key.PublicKey, digest[:], signature) {
		t.Errorf("the signature does not verify (%v)", err)
	}

	if made[0] != made[1] {
		t.Error("it is another one each time")
	}
}

func TestSection(t *testing.T) {
	const log = "# Changelog\n\n## Unreleased\n\n- new\n\n## 1.2.3\n\n- fixed\n\n### More\n\n- too\n\n## 1.2.2\n"

	for version, want := range map[string]string{
		"1.2.3": "- fixed\n\n### More\n\n- too\n\n### Other changes\n\n- new", "1.3.0-rc.1": "- new", "1.2.2": "- new",
	} {
		if got, err := sectionOf(log, version); err != nil || got != want {
			t.Errorf("%s: %q, %v", version, got, err)
		}
	}

	if got, err := sectionOf(strings.Replace(log, "- new\n", "", 1), "1.2.3"); err != nil || got != "- fixed\n\n### More\n\n- too" {
		t.Errorf("with an empty unreleased section: %q, %v", got, err)
	}

	for _, version := range []string{"2.0.0", "1.2"} {
		if _, err := sectionOf(log, version); err == nil || !strings.Contains(err.Error(), "## "+version) {
			t.Errorf("a version without a section is released: %v", err)
		}
	}
}

func TestPlatforms(t *testing.T) {
	t.Parallel()

	if got, err := parsePlatforms("darwin/arm64 windows/amd64"); err != nil || len(got) != 2 || got[1] != (platform{"windows", "amd64"}) {
		t.Errorf("read as %v, %v", got, err)
	}

	for _, text := range []string{"darwin", "/arm64", "linux/amd64"} {
		if _, err := parsePlatforms(text); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}

	names := map[string]bool{}
	for _, one := range newFakeRelease(t).programs() {
		names[one.file()] = true
	}

	if len(names) != 11 || !names["bootstrap-service-windows-amd64.exe"] || !names["pvesim-linux-amd64"] ||
		!names["hyperfleet-darwin-arm64"] || !names["hyperfleet-windows-amd64.exe"] || names["hyperfleet-platform-darwin-arm64"] {
		t.Errorf("the release has the programs %v", names)
	}
}
