// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"sigs.k8s.io/yaml"
)

// Media types of Helm charts in registries.
const (
	chartConfigType = types.MediaType("application/vnd.cncf.helm.config.v1+json")
	chartLayerType  = types.MediaType("application/vnd.cncf.helm.chart.content.v1.tar+gzip")
)

// chartsPath separates charts from images of the same name: REGISTRY/charts/NAME.
const chartsPath = "charts"

// publish pushes the images, the bundle and the charts of a release in dist to the registry. It first verifies the
// checksums of all of them, and changes no tag that exists. The credentials are those of `docker login` or `skopeo login`.
func (r *release) publish(ctx context.Context) error {
	if r.registry == "" {
		return errors.New("publish: name the registry: REGISTRY=registry.example.com/fleet")
	}

	sums, err := r.readChecksums()
	if err != nil {
		return err
	}

	charts, err := os.ReadDir(r.source(chartsFolder))
	if err != nil {
		return err
	}

	images := append(imageNames(), bundleName)
	for _, image := range images {
		if err := r.verify(sums, image+"-"+r.version+".oci.tar"); err != nil {
			return err
		}
	}

	for _, chart := range charts {
		if err := r.verify(sums, r.chartFile(chart.Name())); err != nil {
			return err
		}
	}

	for _, image := range images {
		if err := r.pushArchive(ctx, image); err != nil {
			return fmt.Errorf("push image %s: %w", image, err)
		}
	}

	for _, chart := range charts {
		if err := r.pushChart(ctx, chart.Name()); err != nil {
			return fmt.Errorf("push chart %s: %w", chart.Name(), err)
		}
	}

	return nil
}

// readChecksums returns the checksums of the release's files.
func (r *release) readChecksums() (map[string]string, error) {
	text, err := os.ReadFile(r.file(sumsFile))
	if err != nil {
		return nil, fmt.Errorf("read checksums: run make release first: %w", err)
	}

	out := map[string]string{}

	for line := range strings.Lines(string(text)) {
		if sum, file, ok := strings.Cut(strings.TrimSpace(line), "  "); ok {
			out[file] = sum
		}
	}

	return out, nil
}

func (r *release) verify(sums map[string]string, file string) error {
	sum, err := sha256Of(r.file(file))
	if err != nil {
		return err
	}

	if sums[file] != sum {
		return fmt.Errorf("verify %s: its checksum is not the one in %s: run make release again", r.file(file), sumsFile)
	}

	return nil
}

// pushArchive pushes the index in an OCI archive.
func (r *release) pushArchive(ctx context.Context, image string) error {
	folder, err := os.MkdirTemp("", "hyperfleet-publish-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder) //nolint:errcheck // a temporary folder

	if err := unpackLayout(r.file(image+"-"+r.version+".oci.tar"), folder); err != nil {
		return err
	}

	outer, err := layout.ImageIndexFromPath(folder)
	if err != nil {
		return err
	}

	manifest, err := outer.IndexManifest()
	if err != nil || len(manifest.Manifests) != 1 {
		return errors.Join(errors.New("the archive must have one index"), err)
	}

	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		return err
	}

	target, err := r.parseTarget(image, r.version)
	if err != nil {
		return err
	}

	return push(ctx, target, index, func() error { return remote.WriteIndex(target, index, pushOptions(ctx)...) })
}

// push writes a tag, unless it has the content already. It changes no tag with other content, which users may have pulled.
func push(ctx context.Context, target name.Tag, content partial.WithRawManifest, write func() error) error {
	digest, err := partial.Digest(content)
	if err != nil {
		return err
	}

	existing, err := remote.Head(target, pushOptions(ctx)...)
	if refusal, ok := errors.AsType[*transport.Error](err); ok {
		switch refusal.StatusCode {
		case http.StatusNotFound:
			existing, err = nil, nil
		case http.StatusUnauthorized, http.StatusForbidden: // so some registries answer for a repository that does not exist
			logf("the tag %s cannot be read, so it is pushed", target)

			existing, err = nil, nil
		}
	}

	switch {
	case err != nil:
		return fmt.Errorf("look for tag %s: %w", target, err)
	case existing == nil:
	case existing.Digest == digest:
		logf("%s exists already", target)

		return nil
	default:
		return fmt.Errorf("the tag %s exists with other content (%s): publish another version, or delete the tag if nobody uses it",
			target, existing.Digest)
	}

	if err := write(); err != nil {
		return err
	}

	logf("pushed %s", target)

	return nil
}

// unpackLayout unpacks an OCI archive that writeArchive has written.
func unpackLayout(archive, folder string) error {
	file, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer file.Close() //nolint:errcheck // it is only read

	for in := tar.NewReader(file); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}

		if err != nil {
			return err
		}

		if !filepath.IsLocal(header.Name) {
			return fmt.Errorf("unpack %s: the name %q is not local", archive, header.Name)
		}

		unpacked := filepath.Join(folder, filepath.FromSlash(header.Name))
		if err := os.MkdirAll(filepath.Dir(unpacked), 0o700); err != nil {
			return err
		}

		out, err := os.OpenFile(unpacked, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}

		_, err = io.Copy(out, in) //nolint:gosec // this program has written the archive
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
	}
}

func (r *release) parseTarget(repository, tag string) (name.Tag, error) {
	return name.NewTag(r.registry+"/"+repository+":"+tag, name.StrictValidation)
}

func pushOptions(ctx context.Context) []remote.Option {
	return []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain)}
}

// chart is a Helm chart as an OCI artifact. It is a partial.CompressedImageCore.
type chart struct {
	config, manifest []byte
	layer            v1.Layer
}

func (*chart) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (c *chart) RawManifest() ([]byte, error)      { return c.manifest, nil }
func (c *chart) RawConfigFile() ([]byte, error)    { return c.config, nil }

// LayerByDigest returns the only layer.
func (c *chart) LayerByDigest(v1.Hash) (partial.CompressedLayer, error) { return c.layer, nil }

// newChart returns the chart in a packed file.
func newChart(packed []byte, metadata map[string]any) (v1.Image, error) {
	config, err := json.Marshal(metadata)
	if err != nil {
		return nil, err
	}

	configHash, configSize, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}

	layer := static.NewLayer(packed, chartLayerType)

	layerHash, err := layer.Digest()
	if err != nil {
		return nil, err
	}

	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1,
		Config: v1.Descriptor{MediaType: chartConfigType, Size: configSize, Digest: configHash},
		Layers: []v1.Descriptor{{MediaType: chartLayerType, Size: int64(len(packed)), Digest: layerHash}},
		Annotations: map[string]string{
			"org.opencontainers.image.title":       fmt.Sprint(metadata["name"]),
			"org.opencontainers.image.version":     fmt.Sprint(metadata["version"]),
			"org.opencontainers.image.description": fmt.Sprint(metadata["description"]),
		},
	})
	if err != nil {
		return nil, err
	}

	return partial.CompressedToImage(&chart{config: config, manifest: manifest, layer: layer})
}

func (r *release) chartFile(chart string) string { return chart + "-" + r.plainVersion() + ".tgz" }

// pushChart pushes a chart under the tag that Helm expects.
func (r *release) pushChart(ctx context.Context, chart string) error {
	packed, err := os.ReadFile(r.file(r.chartFile(chart)))
	if err != nil {
		return err
	}

	metadata, err := readChartMetadata(packed)
	if err != nil {
		return err
	}

	image, err := newChart(packed, metadata)
	if err != nil {
		return err
	}

	// A tag has no plus sign, and Helm replaces it in the same way.
	target, err := r.parseTarget(chartsPath+"/"+chart, strings.ReplaceAll(r.plainVersion(), "+", "_"))
	if err != nil {
		return err
	}

	return push(ctx, target, image, func() error { return remote.Write(target, image, pushOptions(ctx)...) })
}

// readChartMetadata returns the Chart.yaml in a packed chart.
func readChartMetadata(packed []byte) (map[string]any, error) {
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return nil, fmt.Errorf("unpack chart: %w", err)
	}

	for in := tar.NewReader(unpacked); ; {
		header, err := in.Next()
		if err != nil {
			return nil, fmt.Errorf("find Chart.yaml of chart: %w", err)
		}

		if folder, file := path.Split(header.Name); file != "Chart.yaml" || strings.Count(folder, "/") != 1 {
			continue
		}

		text, err := io.ReadAll(in)
		if err != nil {
			return nil, fmt.Errorf("read Chart.yaml: %w", err)
		}

		var metadata map[string]any
		if err := yaml.Unmarshal(text, &metadata); err != nil {
			return nil, fmt.Errorf("parse Chart.yaml: %w", err)
		}

		return metadata, nil
	}
}
