// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"encoding/json"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// newDPUCRD returns the CRD of DPU. Its schema has only the fields by which the bridge recognises a
// DPU's worker, with the validation of https://docs.nvidia.com/networking/display/dpf/ (API reference,
// DPU). The schema preserves other fields.
func newDPUCRD() *apiextensionsv1.CustomResourceDefinition {
	immutable := schema{Type: "string", XValidations: rules{{Rule: "self == oldSelf", Message: "Value is immutable"}}}
	preserveUnknown := new(true)

	spec := schema{
		Type: "object", XPreserveUnknownFields: preserveUnknown,
		Properties: properties{
			"cluster": {
				Type: "object", XPreserveUnknownFields: preserveUnknown,
				Properties: properties{"name": immutable, "namespace": immutable},
			},
		},
	}
	status := schema{
		Type: "object", XPreserveUnknownFields: preserveUnknown,
		Properties: properties{"phase": {Type: "string", Enum: newPhaseEnum()}},
	}

	return newCRD("DPU", &schema{
		Type: "object",
		Properties: properties{
			"apiVersion": {Type: "string"}, "kind": {Type: "string"}, "metadata": {Type: "object"},
			"spec": spec, "status": status,
		},
	})
}

func newPhaseEnum() []apiextensionsv1.JSON {
	var out []apiextensionsv1.JSON

	for _, phase := range []string{
		"Initializing", "Node Effect", "Pending", "Config FW Parameters", "Prepare BFB", "OS Installing", "DPU Config",
		"DPU Cluster Config", "Host Network Configuration", "Ready", "Error", "Deleting", "Rebooting", "Perform ARM Force Restart",
		"Initialize Interface", "Node Effect Removal", "Checking Host Reboot Required",
	} {
		raw, err := json.Marshal(phase)
		if err != nil {
			panic(err) // a string can always be encoded
		}

		out = append(out, apiextensionsv1.JSON{Raw: raw})
	}

	return out
}

// newDPUFlavorCRD returns the CRD of DPUFlavor. Its schema has only the fields that the bridge reads.
func newDPUFlavorCRD() *apiextensionsv1.CustomResourceDefinition {
	preserveUnknown, text := new(true), schema{Type: "string"}
	texts := schema{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text}}
	file := schema{
		Type: "object",
		Properties: properties{
			"operation": {Type: "string", Enum: []apiextensionsv1.JSON{{Raw: []byte(`"override"`)}, {Raw: []byte(`"append"`)}}},
			"path":      text, "permissions": text, "raw": text,
		},
	}
	spec := schema{
		Type: "object", XPreserveUnknownFields: preserveUnknown,
		Properties: properties{
			"configFiles": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &file}},
			"dpuMode": {Type: "string", Enum: []apiextensionsv1.JSON{
				{Raw: []byte(`"dpu"`)}, {Raw: []byte(`"zero-trust"`)}, {Raw: []byte(`"nic"`)},
			}},
			"grub": {Type: "object", Properties: properties{"kernelParameters": texts}},
			"ovs":  {Type: "object", Properties: properties{"rawConfigScript": text}},
		},
	}

	return newCRD("DPUFlavor", &schema{
		Type: "object",
		Properties: properties{
			"apiVersion": {Type: "string"}, "kind": {Type: "string"}, "metadata": {Type: "object"}, "spec": spec,
		},
	})
}
