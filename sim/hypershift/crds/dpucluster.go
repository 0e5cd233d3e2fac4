// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

const (
	group    = "provisioning.dpu.nvidia.com"
	fileMode = 0o600
)

// newDPUClusterCRD returns the CRD of DPUCluster. Its schema has only the fields that the bridge reads
// or writes, with the validation of https://docs.nvidia.com/networking/display/dpf/ (API reference,
// DPUCluster). The schema preserves other fields.
func newDPUClusterCRD() *apiextensionsv1.CustomResourceDefinition {
	return newCRD("DPUCluster", dpuClusterSchema())
}

// newCRD returns the CRD of a namespaced DPF kind with the status subresource.
func newCRD(kind string, kindSchema *schema) *apiextensionsv1.CustomResourceDefinition {
	singular := strings.ToLower(kind)

	return &apiextensionsv1.CustomResourceDefinition{
		TypeMeta:   metav1.TypeMeta{APIVersion: apiextensionsv1.SchemeGroupVersion.String(), Kind: "CustomResourceDefinition"},
		ObjectMeta: metav1.ObjectMeta{Name: singular + "s." + group},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: group, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{
				Kind: kind, ListKind: kind + "List", Plural: singular + "s", Singular: singular,
			},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1alpha1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: kindSchema},
				Subresources: &apiextensionsv1.CustomResourceSubresources{
					Status: &apiextensionsv1.CustomResourceSubresourceStatus{},
				},
			}},
		},
	}
}

type (
	properties = map[string]apiextensionsv1.JSONSchemaProps
	schema     = apiextensionsv1.JSONSchemaProps
	rules      = apiextensionsv1.ValidationRules
)

func dpuClusterSchema() *schema {
	preserveUnknown := new(true)

	spec := schema{
		Type: "object", Required: []string{"type"}, XPreserveUnknownFields: preserveUnknown,
		Properties: properties{
			"type": {
				Type: "string", Pattern: "kamaji|static|[^/]+/.*",
				XValidations: rules{{Rule: "self == oldSelf", Message: "Value is immutable"}},
			},
			"maxNodes": {
				Type: "integer", Minimum: new(1.0), Maximum: new(1000.0), Default: &apiextensionsv1.JSON{Raw: []byte("1000")},
			},
			"kubeconfig": {
				Type: "string", Default: &apiextensionsv1.JSON{Raw: []byte(`""`)},
				XValidations: rules{{Rule: `oldSelf == "" || self == oldSelf`, Message: "Value is immutable"}},
			},
		},
	}
	status := schema{
		Type: "object", XPreserveUnknownFields: preserveUnknown,
		Properties: properties{
			"phase": {Type: "string", Enum: []apiextensionsv1.JSON{
				{Raw: []byte(`"Pending"`)}, {Raw: []byte(`"Creating"`)}, {Raw: []byte(`"Ready"`)},
				{Raw: []byte(`"NotReady"`)}, {Raw: []byte(`"Failed"`)},
			}},
			"version":    {Type: "string"},
			"nodesCount": {Type: "integer", Minimum: new(0.0)},
		},
	}

	return &schema{
		Type: "object", Required: []string{"spec"},
		Properties: properties{
			"apiVersion": {Type: "string"}, "kind": {Type: "string"}, "metadata": {Type: "object"},
			"spec": spec, "status": status,
		},
		XValidations: rules{{Rule: "self.metadata.name.size() <= 63", Message: "name length can't be bigger than 63 chars"}},
	}
}

func installDefinition(
	ctx context.Context, config *rest.Config, definition *apiextensionsv1.CustomResourceDefinition,
) error {
	dir, err := os.MkdirTemp("", "hyperfleet-crds-")
	if err != nil {
		return fmt.Errorf("install %s: %w", definition.Name, err)
	}

	defer os.RemoveAll(dir) //nolint:errcheck // the operating system also cleans up temporary files

	raw, err := json.Marshal(definition)
	if err != nil {
		return fmt.Errorf("encode CRD of %s: %w", definition.Name, err)
	}

	file := filepath.Join(dir, "definition.yaml")
	if err := os.WriteFile(file, raw, fileMode); err != nil {
		return fmt.Errorf("write CRD of %s: %w", definition.Name, err)
	}

	return kubeproc.Apply(ctx, config, file)
}
