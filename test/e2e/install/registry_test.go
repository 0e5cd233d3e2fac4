// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path"
	"regexp"
	"runtime"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/test/kube"
)

// installPage describes the installation from a registry.
const installPage = root + "docs/operate/install.md"

// registryPort matches what the registry prints when it listens.
var registryPort = regexp.MustCompile(`serving on port (\d+)`)

// startRegistry starts a registry on loopback, which keeps images in memory, and returns its address.
func startRegistry(t *testing.T) string {
	t.Helper()

	cmd := exec.CommandContext(t.Context(), root+"bin/registry", "-port", "0")

	output, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}

	if err != nil {
		t.Fatalf("start the registry: %v: run make e2e-install", err)
	}

	t.Cleanup(func() { _ = cmd.Wait() })

	lines := bufio.NewScanner(output)
	for lines.Scan() {
		if match := registryPort.FindStringSubmatch(lines.Text()); match != nil {
			go func() { _, _ = io.Copy(io.Discard, output) }()

			return "localhost:" + match[1]
		}
	}

	t.Fatalf("the registry ended: %v", lines.Err())

	return ""
}

// publish pushes the release to a registry, as make publish does.
func publish(t *testing.T, registry string) {
	t.Helper()

	args := []string{"-publish", "-root", root, "-dist", dist, "-version", "v" + version, "-registry", registry}
	cmd := exec.CommandContext(t.Context(), root+"bin/release", args...)

	if output, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("publish the release: %v\n%s", err, output)
	}
}

// manifest is an index or a manifest of an image.
type manifest struct {
	Manifests []struct {
		Digest   string
		Platform struct{ Architecture string }
	}
	Layers []struct{ Digest string }
}

// pull returns the content of a URL of a registry.
func pull(t *testing.T, url string) []byte {
	t.Helper()

	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}

	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()

	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("pull %s: %s %v", url, response.Status, err)
	}

	return content
}

// pullManifest returns a manifest by its tag or digest.
func pullManifest(t *testing.T, url string) manifest {
	t.Helper()

	var out manifest
	if err := json.Unmarshal(pull(t, url), &out); err != nil {
		t.Fatalf("read %s: %v", url, err)
	}

	return out
}

// pullProgram returns a program in an image for this machine, as a node would pull and run it.
func pullProgram(t *testing.T, image, program string) []byte {
	t.Helper()

	host, rest, _ := strings.Cut(image, "/")
	repository, tag, _ := strings.Cut(rest, ":")
	base := "http://" + host + "/v2/" + repository

	for _, one := range pullManifest(t, base+"/manifests/"+tag).Manifests {
		if one.Platform.Architecture != runtime.GOARCH {
			continue
		}

		for _, layer := range pullManifest(t, base+"/manifests/"+one.Digest).Layers {
			if content := findFile(t, pull(t, base+"/blobs/"+layer.Digest), program); content != nil {
				return content
			}
		}
	}

	t.Fatalf("image %s has no program %s for %s", image, program, runtime.GOARCH)

	return nil
}

// findFile returns the content of a file in a layer, or nil.
func findFile(t *testing.T, layer []byte, name string) []byte {
	t.Helper()

	var source io.Reader = bytes.NewReader(layer)
	if unpacked, err := gzip.NewReader(source); err == nil {
		source = unpacked
	} else {
		source = bytes.NewReader(layer)
	}

	for files := tar.NewReader(source); ; {
		header, err := files.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			t.Fatalf("read layer: %v", err)
		}

		if path.Base(header.Name) == name && header.Typeflag == tar.TypeReg {
			content, err := io.ReadAll(files)
			if err != nil {
				t.Fatalf("read layer: %v", err)
			}

			return content
		}
	}
}

// TestPublishedRelease checks that the commands of the page install what make publish pushes: Helm pulls the charts from the
// registry, and the Deployment names an image there whose program is that of the release.
func TestPublishedRelease(t *testing.T) {
	t.Parallel()

	registry := startRegistry(t)
	publish(t, registry+"/fleet")

	env := kube.Start(t)
	u := newUser(t, env, "")
	names := strings.NewReplacer("registry.example.com", registry, "0.1.0", version, "helm install", "helm install --plain-http")

	blocks := readBlocks(t, installPage, "run: TestPublishedRelease")
	if len(blocks) != 1 {
		t.Fatalf("%s has %d blocks for this test", installPage, len(blocks))
	}

	u.runCommands(names.Replace(blocks[0]))

	deployment := &appsv1.Deployment{}
	u.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: defaultNamespace, Name: "hyperfleet-runners"}, deployment))

	image := deployment.Spec.Template.Spec.Containers[0].Image
	if want := registry + "/fleet/hyperfleet:v" + version; image != want {
		t.Fatalf("the image is %s, want %s", image, want)
	}

	want, err := os.ReadFile(releaseProgram(t, "hyperfleet"))
	u.must(err)

	if !bytes.Equal(pullProgram(t, image, "hyperfleet"), want) {
		t.Error("the program in the image is not that of the release")
	}

	waitUntilReady(t, runDeployment(t, env, defaultNamespace, "hyperfleet-runners"))
}
