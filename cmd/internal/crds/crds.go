// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/deploy"
)

// Fix tells how to install the CRDs.
const Fix = "run `kubectl apply --server-side -f hyperfleet-crds.yaml` with the file of the release, " +
	"or install its chart hyperfleet-crds"

// ErrNotInstalled means that the cluster has no CRDs of HyperFleet.
var ErrNotInstalled = errors.New("HyperFleet is not installed in this cluster: choose another cluster with --context, or " + Fix)

// Load returns the CRDs that are built into this program.
func Load() ([]*apiextensionsv1.CustomResourceDefinition, error) {
	files, err := fs.Glob(deploy.CRDs, "crds/*.yaml")
	if err != nil {
		return nil, fmt.Errorf("list embedded CRDs: %w", err)
	}

	out := make([]*apiextensionsv1.CustomResourceDefinition, 0, len(files))

	for _, file := range files {
		text, err := deploy.CRDs.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read embedded CRD: %w", err)
		}

		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := yaml.UnmarshalStrict(text, crd); err != nil {
			return nil, fmt.Errorf("parse %s: %w", file, err)
		}

		out = append(out, crd)
	}

	return out, nil
}

// AreaOf returns the area whose operator reconciles the objects of the CRD.
func AreaOf(crd *apiextensionsv1.CustomResourceDefinition) string {
	switch crd.Spec.Names.Plural {
	case "dnsregistrations", "kubevirtnodepools", "kubevirtmachinetemplates", "kubevirtmachines":
		return config.AreaNetworking
	case "hostfleets", "linuxmachines", "scalewayapplesiliconmachines":
		return config.AreaHosts
	case "dpfhcpbridges":
		return config.AreaBridge
	default:
		return config.AreaRunners
	}
}

// FindMissingFields returns the paths of the fields in the expected schema that the served schema lacks, sorted. The
// API server drops these fields from what is written. If a field is missing, the fields in it are not listed.
func FindMissingFields(expected, served *apiextensionsv1.JSONSchemaProps) []string {
	missing := findMissingFields(expected, served, "")
	slices.Sort(missing)

	return missing
}

func findMissingFields(expected, served *apiextensionsv1.JSONSchemaProps, path string) []string {
	if expected == nil || served != nil && served.XPreserveUnknownFields != nil && *served.XPreserveUnknownFields {
		return nil
	}

	if served == nil {
		served = &apiextensionsv1.JSONSchemaProps{}
	}

	var missing []string

	for name := range expected.Properties {
		field := name
		if path != "" {
			field = path + "." + name
		}

		want := expected.Properties[name]

		got, ok := served.Properties[name]
		if !ok {
			missing = append(missing, field)

			continue
		}

		missing = append(missing, findMissingFields(&want, &got, field)...)
	}

	if expected.Items != nil && served.Items != nil {
		missing = append(missing, findMissingFields(expected.Items.Schema, served.Items.Schema, path+"[]")...)
	}

	if expected.AdditionalProperties != nil && served.AdditionalProperties != nil {
		missing = append(missing,
			findMissingFields(expected.AdditionalProperties.Schema, served.AdditionalProperties.Schema, path+"[]")...)
	}

	return missing
}
