// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"log/slog"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/yaml"
)

// newPublishedRelease returns a release with fake programs whose images and charts are built, and a registry on loopback.
func newPublishedRelease(t *testing.T) *release {
	t.Helper()

	server := httptest.NewServer(registry.New(registry.Logger(slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo))))
	t.Cleanup(server.Close)

	r := newFakeRelease(t)
	r.registry = strings.TrimPrefix(server.URL, "http://") + "/fleet"

	for _, step := range []func() error{r.writeImages, r.packCharts, r.writeManifests, r.writeBundle, r.writeChecksums} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}

	return r
}

// TestPublish checks that a registry has what the release has, so that it can be pulled and installed.
func TestPublish(t *testing.T) {
	r := newPublishedRelease(t)

	for range 2 { // a repeated publication changes nothing
		if err := r.publish(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	for _, image := range append(imageNames(), bundleName) {
		target, err := name.ParseReference(r.imageName(image) + ":v1.2.3")
		if err != nil {
			t.Fatal(err)
		}

		index, err := remote.Index(target)
		if err != nil {
			t.Fatal(err)
		}

		manifest, err := index.IndexManifest()
		if err != nil {
			t.Fatal(err)
		}

		if want := map[bool]int{true: 1, false: 2}[image == bundleName]; len(manifest.Manifests) != want {
			t.Errorf("%s has %d platforms, want %d", image, len(manifest.Manifests), want)
		}

		// Each layer can be pulled, and has the content of its digest.
		for _, platform := range manifest.Manifests {
			pulled, err := index.Image(platform.Digest)
			if err != nil {
				t.Fatal(err)
			}

			layers, err := pulled.Layers()
			if err != nil || len(layers) == 0 {
				t.Fatalf("%s has %d layers: %v", image, len(layers), err)
			}

			for _, layer := range layers {
				content, err := layer.Uncompressed()
				if err != nil {
					t.Fatal(err)
				}

				if _, err := io.Copy(io.Discard, content); err != nil {
					t.Errorf("read layer of %s: %v", image, err)
				}
			}
		}
	}
}

// TestPublishedCharts checks that charts have the media types and the metadata that Helm reads.
func TestPublishedCharts(t *testing.T) {
	r := newPublishedRelease(t)
	if err := r.publish(t.Context()); err != nil {
		t.Fatal(err)
	}

	for _, chart := range []string{"hyperfleet", "hyperfleet-crds", "hyperfleet-platform"} {
		target, err := name.ParseReference(r.imageName("charts/"+chart) + ":1.2.3")
		if err != nil {
			t.Fatal(err)
		}

		image, err := remote.Image(target)
		if err != nil {
			t.Fatal(err)
		}

		manifest, err := image.Manifest()
		if err != nil || manifest.Config.MediaType != chartConfigType || len(manifest.Layers) != 1 || manifest.Layers[0].MediaType != chartLayerType {
			t.Fatalf("%s: got %+v (%v)", chart, manifest, err)
		}

		config, err := image.RawConfigFile()
		if err != nil {
			t.Fatal(err)
		}

		var metadata struct {
			Name, Version, AppVersion, Home string
			Annotations                     map[string]string
		}
		if err := yaml.Unmarshal(config, &metadata); err != nil || metadata.Name != chart || metadata.Version != "1.2.3" || metadata.AppVersion != "v1.2.3" {
			t.Errorf("got metadata %s (%v)", config, err)
		}

		// Artifact Hub shows them.
		if metadata.Home == "" || metadata.Annotations["artifacthub.io/license"] != "Apache-2.0" || metadata.Annotations["artifacthub.io/category"] == "" {
			t.Errorf("%s lacks metadata for Artifact Hub: %s", chart, config)
		}

		layers, err := image.Layers()
		if err != nil {
			t.Fatal(err)
		}

		content, err := layers[0].Compressed()
		if err != nil {
			t.Fatal(err)
		}

		packed, err := io.ReadAll(content)
		if err != nil || !bytes.Equal(packed, readFile(t, r.file(r.chartFile(chart)))) {
			t.Errorf("the registry has another %s than the release (%v)", chart, err)
		}
	}
}

// TestPublishRefuses checks that files that were changed after the release are not pushed.
func TestPublishRefuses(t *testing.T) {
	r := newPublishedRelease(t)

	file := r.file(r.chartFile("hyperfleet"))
	if err := os.WriteFile(file, append(readFile(t, file), 'x'), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := r.publish(t.Context()); err == nil || !strings.Contains(err.Error(), "its checksum is not the one in SHA256SUMS") {
		t.Errorf("got %v", err)
	}

	r.registry = ""
	if err := r.publish(t.Context()); err == nil || !strings.Contains(err.Error(), "REGISTRY=") {
		t.Errorf("got %v", err)
	}

	empty := &release{dist: t.TempDir(), registry: "127.0.0.1:1/fleet"}
	if err := empty.publish(t.Context()); err == nil || !strings.Contains(err.Error(), "run make release first") {
		t.Errorf("got %v", err)
	}
}

// TestPublishKeepsTags checks that a version that users have pulled keeps its content, and that nothing is pushed if one
// file is wrong.
func TestPublishKeepsTags(t *testing.T) {
	r := newPublishedRelease(t)

	// The last file is wrong, and the first one is not pushed.
	file := r.file(r.chartFile("hyperfleet-platform"))
	packed := readFile(t, file)

	if err := os.WriteFile(file, append(bytes.Clone(packed), 'x'), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := r.publish(t.Context()); err == nil {
		t.Error("want an error about the checksum")
	}

	if _, err := remote.Head(parseReference(t, r.imageName("hyperfleet")+":v1.2.3")); err == nil {
		t.Error("an image was pushed, and the release is not complete")
	}

	if err := os.WriteFile(file, packed, 0o600); err != nil {
		t.Fatal(err)
	}

	if err := r.publish(t.Context()); err != nil {
		t.Fatal(err)
	}

	// Another build of the same version.
	chart := r.file(r.chartFile("hyperfleet"))
	if err := os.WriteFile(chart, append(readFile(t, chart), 0), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := r.writeChecksums(); err != nil {
		t.Fatal(err)
	}

	reference := parseReference(t, r.imageName("charts/hyperfleet")+":1.2.3")

	before, err := remote.Head(reference)
	if err != nil {
		t.Fatal(err)
	}

	if err := r.publish(t.Context()); err == nil || !strings.Contains(err.Error(), "publish another version") {
		t.Errorf("want an error about the tag, got %v", err)
	}

	if after, err := remote.Head(reference); err != nil || after.Digest != before.Digest {
		t.Errorf("the tag was overwritten (%v)", err)
	}
}

// TestPublishedMetadata checks that a chart has the metadata of its file, also if the checkout has changed since.
func TestPublishedMetadata(t *testing.T) {
	r := newPublishedRelease(t)

	metadata, err := readChartMetadata(readFile(t, r.file(r.chartFile("hyperfleet"))))
	if err != nil || metadata["name"] != "hyperfleet" || metadata["version"] != "1.2.3" {
		t.Errorf("got %v (%v)", metadata, err)
	}

	for _, packed := range [][]byte{nil, []byte("no archive")} {
		if _, err := readChartMetadata(packed); err == nil {
			t.Errorf("want an error for %q", packed)
		}
	}
}

func parseReference(t *testing.T, text string) name.Reference {
	t.Helper()

	reference, err := name.ParseReference(text)
	if err != nil {
		t.Fatal(err)
	}

	return reference
}
