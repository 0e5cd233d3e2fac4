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

// kustomization is the part of one that the folders in deploy use.
type kustomization struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Resources  []string `json:"resources"`
}

// manifests writes each thing that can be installed as one file, with the images' full names.
func (r *release) manifests() error {
	for name, folder := range map[string]string{
		"hyperfleet.yaml":          "deploy/base",
		"hyperfleet-crds.yaml":     "deploy/crds",
		"hyperfleet-bridge.yaml":   "deploy/bridge",
		"hyperfleet-platform.yaml": "deploy/platform",
	} {
		text, err := build(r.source(folder))
		if err != nil {
			return err
		}

		if err := r.write(name, r.named(text)); err != nil {
			return err
		}
	}

	return nil
}

var bareImage = regexp.MustCompile(`(?m)^(\s*(?:- )?image: )(hyperfleet(?:-platform)?)$`)

func (r *release) named(text string) string {
	return bareImage.ReplaceAllStringFunc(text, func(line string) string {
		parts := bareImage.FindStringSubmatch(line)

		return parts[1] + r.image(parts[2]) + ":" + r.version
	})
}

// build gives the files of a kustomization, one after the other, with their comments.
func build(dir string) (string, error) {
	var spec kustomization

	raw, err := os.ReadFile(filepath.Join(dir, "kustomization.yaml"))
	if os.IsNotExist(err) {
		raw, err = os.ReadFile(filepath.Join(dir, "Kustomization"))
	}

	if err != nil {
		return "", err
	}

	if err := yaml.UnmarshalStrict(raw, &spec); err != nil {
		return "", fmt.Errorf("read %s: %w", dir, err)
	}

	var out strings.Builder

	for _, resource := range spec.Resources {
		file := filepath.Join(dir, resource)

		info, err := os.Stat(file)
		if err != nil {
			return "", err
		}

		if info.IsDir() {
			text, err := build(file)
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
