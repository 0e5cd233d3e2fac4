// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

// kustomization has the fields of a kustomization that the folders in deploy use.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
}

// writeManifests writes the manifests of each component to one file, with the full names of the images.
func (r *release) writeManifests() error {
	for name, folder := range map[string]string{
		"hyperfleet.yaml":          "deploy/base",
		"hyperfleet-crds.yaml":     "deploy/crds",
		"hyperfleet-bridge.yaml":   "deploy/bridge",
		"hyperfleet-platform.yaml": "deploy/platform",
	} {
		text, err := buildKustomization(r.source(folder))
		if err != nil {
			return err
		}

		if err := r.write(name, r.setImageNames(text)); err != nil {
			return err
		}
	}

	return nil
}

var bareImage = regexp.MustCompile(`(?m)^(\s*(?:- )?image: )(hyperfleet(?:-platform)?)$`)

// setImageNames replaces the short names of images in manifests with their full names and tags.
func (r *release) setImageNames(text string) string {
	return bareImage.ReplaceAllStringFunc(text, func(line string) string {
		parts := bareImage.FindStringSubmatch(line)

		return parts[1] + r.imageName(parts[2]) + ":" + r.version
	})
}

// buildKustomization returns the files of a kustomization in order, with their comments.
func buildKustomization(dir string) (string, error) {
	var spec kustomization

	raw, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if os.IsNotExist(err) {
		raw, err = os.ReadFile(filepath.Join(dir, "Kustomization"))
	}

	if err != nil {
		return "", err
	}

	if err := yaml.UnmarshalStrict(raw, &spec); err != nil {
		return "", fmt.Errorf("decode kustomization in %s: %w", dir, err)
	}

	var out strings.Builder

	for _, resource := range spec.Resources {
		file := filepath.Join(dir, resource)

		info, err := os.Stat(file)
		if err != nil {
			return "", err
		}

		if info.IsDir() {
			text, err := buildKustomization(file)
			if err != nil {
				return "", err
			}

			out.WriteString(text)

			continue
		}

		text, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}

		out.WriteString("---\n" + strings.TrimPrefix(strings.TrimSpace(string(text)), "---\n") + "\n")
	}

	return out.String(), nil
}
