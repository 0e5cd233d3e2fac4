// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ocm

import (
	"encoding/json"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// maxManifests is the maximum total size of a ManifestWork's manifests in bytes.
const maxManifests = 500 * 1024

// Validate returns the error with which the hub's admission webhook rejects a ManifestWork (ocm,
// pkg/work/webhook).
func Validate(work *unstructured.Unstructured) error {
	manifests := parseManifests(work)
	if len(manifests) == 0 {
		return errors.New("manifests should not be empty")
	}

	size := 0

	for _, manifest := range manifests {
		data, err := json.Marshal(manifest.Object)
		if err != nil {
			return fmt.Errorf("encode manifest: %w", err)
		}

		size += len(data)
	}

	if size > maxManifests {
		return fmt.Errorf("the size of manifests is %v bytes which exceeds the %v limit", size, maxManifests)
	}

	for _, manifest := range manifests {
		switch {
		case manifest.GetKind() == "":
			return errors.New("Object 'Kind' is missing") //nolint:staticcheck // the message of apimachinery
		case manifest.GetName() == "":
			return errors.New("name must be set in manifest")
		case manifest.GetGenerateName() != "":
			return errors.New("generateName must not be set in manifest")
		}
	}

	return nil
}

func parseManifests(work *unstructured.Unstructured) []*unstructured.Unstructured {
	list, _, _ := unstructured.NestedSlice(work.Object, "spec", "workload", "manifests")

	manifests := make([]*unstructured.Unstructured, 0, len(list))

	for _, item := range list {
		object, _ := item.(map[string]any)
		manifests = append(manifests, &unstructured.Unstructured{Object: object})
	}

	return manifests
}
