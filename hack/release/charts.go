// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const chartsFolder = "deploy/charts"

// charts packs each chart, under the release's version.
func (r *release) charts() error {
	charts, err := os.ReadDir(r.source(chartsFolder))
	if err != nil {
		return err
	}

	for _, chart := range charts {
		if err := r.chart(chart.Name()); err != nil {
			return fmt.Errorf("pack chart %s: %w", chart.Name(), err)
		}
	}

	return nil
}

func (r *release) chart(name string) error {
	entries, err := files(filepath.Join(r.source(chartsFolder), name), name)
	if err != nil {
		return err
	}

	slices.SortFunc(entries, byName)

	for i, e := range entries {
		switch strings.TrimPrefix(e.name, name+"/") {
		case "Chart.yaml":
			entries[i].data = r.stamped(e.data)
		case "values.yaml":
			entries[i].data = r.placed(e.data)
		}
	}

	return r.pack(name+"-"+r.plain()+".tgz", entries)
}

// deploy packs what the documentation speaks of beside charts and manifests: samples, bases and
// components of kustomize, dashboards, and the script that makes a template.
func (r *release) deploy() error {
	folder := "hyperfleet-deploy-" + r.plain()

	entries, err := files(r.source("deploy"), folder+"/deploy")
	if err != nil {
		return err
	}

	entries = slices.DeleteFunc(entries, func(e entry) bool {
		return strings.HasPrefix(e.name, folder+"/"+chartsFolder+"/") || path.Ext(e.name) == ".go"
	})
	slices.SortFunc(entries, byName)

	for i := range entries {
		entries[i].data = []byte(r.named(string(entries[i].data)))
	}

	return r.pack(folder+".tgz", entries)
}

// pack writes a compressed tar into dist.
func (r *release) pack(name string, entries []entry) error {
	var out bytes.Buffer

	packed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}

	if err := writeTar(packed, entries, r.time); err != nil {
		return err
	}

	if err := packed.Close(); err != nil {
		return err
	}

	return r.write(name, out.String())
}

// stamped is Chart.yaml with the release's version; between releases it has 0.0.0.
func (r *release) stamped(data []byte) []byte {
	text := strings.Replace(string(data), "\nversion: 0.0.0\n", "\nversion: "+r.plain()+"\n", 1)

	return []byte(strings.Replace(text, "\nappVersion: v0.0.0\n", "\nappVersion: "+r.version+"\n", 1))
}

// placed is values.yaml with the full names of the images.
func (r *release) placed(data []byte) []byte {
	text := string(data)
	for _, name := range imageNames() {
		text = strings.Replace(text, "\n  repository: "+name+"\n", "\n  repository: "+r.image(name)+"\n", 1)
	}

	return []byte(text)
}

// files reads a folder, following links: charts link to what kustomize has, too.
func files(dir, name string) ([]entry, error) {
	items, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}

	var entries []entry

	for _, item := range items {
		file := filepath.Join(dir, item.Name())

		info, err := os.Stat(file)
		if err != nil {
			return nil, err
		}

		if info.IsDir() {
			inner, err := files(file, path.Join(name, item.Name()))
			if err != nil {
				return nil, err
			}

			entries = append(entries, inner...)

			continue
		}

		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}

		mode := int64(0o644)
		if info.Mode()&0o100 != 0 {
			mode = 0o755
		}

		entries = append(entries, entry{name: path.Join(name, item.Name()), data: data, mode: mode})
	}

	return entries, nil
}
