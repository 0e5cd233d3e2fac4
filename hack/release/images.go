// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// user is the user and group ID of the programs in images. No host has an account with this ID.
const user = "65532"

// imageNames returns the names of the images. The entry point of each image is the program of that name.
func imageNames() []string { return []string{"hyperfleet", "hyperfleet-platform", "pvesim"} }

// writeImages writes an OCI archive for each image. The index of the archive has all architectures.
func (r *release) writeImages() error {
	for _, name := range imageNames() {
		index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)

		for _, arch := range r.arch {
			image, err := r.buildImage(name, arch)
			if err != nil {
				return fmt.Errorf("build image %s for %s: %w", name, arch, err)
			}

			index = mutate.AppendManifests(index, mutate.IndexAddendum{
				Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
			})
		}

		if err := r.writeArchive(name, index); err != nil {
			return fmt.Errorf("write image %s: %w", name, err)
		}
	}

	return nil
}

// buildImage returns an image for one architecture. It has a base layer and a layer with programs.
func (r *release) buildImage(name, arch string) (v1.Image, error) {
	programs := []entry{{name: "usr/local/bin/" + name, file: r.file(programFile(name, arch)), mode: 0o755}}

	// One operator serves machines of both architectures.
	if name == "hyperfleet" {
		programs = append(programs,
			entry{name: "opt/hyperfleet/bootstrap-service-x64", file: r.file(programFile("bootstrap-service", "amd64")), mode: 0o755},
			entry{name: "opt/hyperfleet/bootstrap-service-arm64", file: r.file(programFile("bootstrap-service", "arm64")), mode: 0o755})
	}

	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)

	for _, entries := range [][]entry{baseEntries(), programs} {
		var content bytes.Buffer
		if err := writeTar(&content, entries, r.time); err != nil {
			return nil, err
		}

		layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(content.Bytes())), nil
		}, tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return nil, err
		}

		if image, err = mutate.AppendLayers(image, layer); err != nil {
			return nil, err
		}
	}

	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}

	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", arch, v1.Time{Time: r.time}
	config.Config = v1.Config{
		User:       user + ":" + user,
		Env:        []string{"PATH=/usr/local/bin"},
		Entrypoint: []string{"/usr/local/bin/" + name},
		WorkingDir: "/",
		Labels:     r.labels(name),
	}

	return mutate.ConfigFile(image, config)
}

func (r *release) labels(name string) map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":    name,
		"org.opencontainers.image.version":  r.version,
		"org.opencontainers.image.revision": r.commit,
		"org.opencontainers.image.created":  r.time.UTC().Format("2006-01-02T15:04:05Z"),
		"org.opencontainers.image.licenses": "Apache-2.0",
	}
}

// baseEntries returns the files that a static program needs: users and groups, CA certificates (Mozilla's
// root certificates from the Go project), and a folder for temporary files. The programs embed the time
// zones.
func baseEntries() []entry {
	var roots bytes.Buffer

	for root := range bundle.Roots() {
		// Skip constrained roots, because programs would trust them without the constraint.
		if root.Constraint == nil {
			_ = pem.Encode(&roots, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer returns no errors
		}
	}

	passwd := "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:" + user + ":" + user + ":nonroot:/home/nonroot:/sbin/nologin\n"

	return []entry{
		{name: "etc/group", data: []byte("root:x:0:\nnonroot:x:" + user + ":\n"), mode: 0o644},
		{name: "etc/passwd", data: []byte(passwd), mode: 0o644},
		{name: "etc/ssl/certs/ca-certificates.crt", data: roots.Bytes(), mode: 0o644},
		{name: "tmp/", mode: 0o1777},
	}
}

// writeArchive writes an index as a tar file with an OCI image layout. Tools that load the archive read the
// name of the image from the annotations.
func (r *release) writeArchive(name string, index v1.ImageIndex) error {
	dir, err := os.MkdirTemp(r.dist, ".image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the temporary folder is in dist

	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}

	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.version,
		"io.containerd.image.name":          r.imageName(name) + ":" + r.version,
	})); err != nil {
		return err
	}

	var entries []entry

	err = filepath.WalkDir(dir, func(file string, item os.DirEntry, err error) error {
		if err != nil || item.IsDir() {
			return err
		}

		relative, err := filepath.Rel(dir, file)
		entries = append(entries, entry{name: filepath.ToSlash(relative), file: file, mode: 0o644})

		return err
	})
	if err != nil {
		return err
	}

	slices.SortFunc(entries, byName)

	out, err := os.Create(r.file(name + "-" + r.version + ".oci.tar"))
	if err != nil {
		return err
	}

	if err := writeTar(out, entries, r.time); err != nil {
		_ = out.Close()

		return err
	}

	return out.Close()
}
