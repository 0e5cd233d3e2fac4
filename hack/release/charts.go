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

// packCharts packs each chart with the version of the release.
func (r *release) packCharts() error {
	charts, err := os.ReadDir(r.source(chartsFolder))
	if err != nil {
		return err
	}

	for _, chart := range charts {
		if err := r.packChart(chart.Name()); err != nil {
			return fmt.Errorf("pack chart %s: %w", chart.Name(), err)
		}
	}

	return nil
}

func (r *release) packChart(name string) error {
	entries, err := readFolder(filepath.Join(r.source(chartsFolder), name), name)
	if err != nil {
		return err
	}

	slices.SortFunc(entries, byName)

	for i, e := range entries {
		switch strings.TrimPrefix(e.name, name+"/") {
		case "Chart.yaml":
			entries[i].data = r.setChartVersion(e.data)
		case "values.yaml":
			entries[i].data = r.setImageRepositories(e.data)
		}
	}

	return r.pack(r.chartFile(name), entries)
}

// packDeploy packs the other files to which the documentation refers: samples, kustomize bases and
// components, dashboards, and the script that creates a template.
func (r *release) packDeploy() error {
	folder := "hyperfleet-deploy-" + r.plainVersion()

	entries, err := readFolder(r.source("deploy"), folder+"/deploy")
	if err != nil {
		return err
	}

	entries = slices.DeleteFunc(entries, func(e entry) bool {
		return strings.HasPrefix(e.name, folder+"/"+chartsFolder+"/") || path.Ext(e.name) == ".go"
	})
	slices.SortFunc(entries, byName)

	for i := range entries {
		entries[i].data = []byte(r.setImageNames(string(entries[i].data)))
	}

	return r.pack(folder+".tgz", entries)
}

// pack writes a compressed tar file to dist.
func (r *release) pack(name string, entries []entry) error {
	var out bytes.Buffer

	compressor, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}

	if err := writeTar(compressor, entries, r.time); err != nil {
		return err
	}

	if err := compressor.Close(); err != nil {
		return err
	}

	return r.write(name, out.String())
}

// setChartVersion returns Chart.yaml with the version of the release in place of 0.0.0.
func (r *release) setChartVersion(data []byte) []byte {
	text := strings.Replace(string(data), "\nversion: 0.0.0\n", "\nversion: "+r.plainVersion()+"\n", 1)

	return []byte(strings.Replace(text, "\nappVersion: v0.0.0\n", "\nappVersion: "+r.version+"\n", 1))
}

// setImageRepositories returns values.yaml with the full names of the images.
func (r *release) setImageRepositories(data []byte) []byte {
	text := string(data)
	for _, name := range imageNames() {
		text = strings.Replace(text, "\n  repository: "+name+"\n", "\n  repository: "+r.imageName(name)+"\n", 1)
	}

	return []byte(text)
}

// readFolder reads the files of a folder and its subfolders. It follows symbolic links, because charts link
// to files of the kustomizations.
func readFolder(dir, name string) ([]entry, error) {
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
			inner, err := readFolder(file, path.Join(name, item.Name()))
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
