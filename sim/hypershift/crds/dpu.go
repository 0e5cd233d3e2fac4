// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package crds

import (
	"encoding/json"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
)

// dpu is DPU with the fields by which its worker is recognised, and their rules:
// https://docs.nvidia.com/networking/display/dpf/ (API reference, DPU). Other fields are
// kept.
func dpu() *apiextensionsv1.CustomResourceDefinition {
	fixed := schema{Type: "string", XValidations: rules{{Rule: "self == oldSelf", Message: "Value is immutable"}}}
	open := new(true)

	spec := schema{
		Type: "object", XPreserveUnknownFields: open,
		Properties: props{
			"cluster": {
				Type: "object", XPreserveUnknownFields: open,
				Properties: props{"name": fixed, "namespace": fixed},
			},
		},
	}
	status := schema{
		Type: "object", XPreserveUnknownFields: open,
		Properties: props{"phase": {Type: "string", Enum: dpuPhases()}},
	}

	return definition("DPU", &schema{
		Type: "object",
		Properties: props{
			"apiVersion": {Type: "string"}, "kind": {Type: "string"}, "metadata": {Type: "object"},
			"spec": spec, "status": status,
		},
	})
}

func dpuPhases() []apiextensionsv1.JSON {
	var out []apiextensionsv1.JSON

	for _, phase := range []string{
		"Initializing", "Node Effect", "Pending", "Config FW Parameters", "Prepare BFB", "OS Installing", "DPU Config",
		"DPU Cluster Config", "Host Network Configuration", "Ready", "Error", "Deleting", "Rebooting", "Perform ARM Force Restart",
		"Initialize Interface", "Node Effect Removal", "Checking Host Reboot Required",
	} {
		raw, err := json.Marshal(phase)
		if err != nil {
			panic(err) // strings can be written
		}

		out = append(out, apiextensionsv1.JSON{Raw: raw})
	}

	return out
}

// dpuFlavor is DPUFlavor with the fields that the bridge reads.
func dpuFlavor() *apiextensionsv1.CustomResourceDefinition {
	open, text := new(true), schema{Type: "string"}
	texts := schema{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text}}
	file := schema{
		Type: "object",
		Properties: props{
			"operation": {Type: "string", Enum: []apiextensionsv1.JSON{{Raw: []byte(`"override"`)}, {Raw: []byte(`"append"`)}}},
			"path":      text, "permissions": text, "raw": text,
		},
	}
	spec := schema{
		Type: "object", XPreserveUnknownFields: open,
		Properties: props{
			"configFiles": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &file}},
			"dpuMode": {Type: "string", Enum: []apiextensionsv1.JSON{
				{Raw: []byte(`"dpu"`)}, {Raw: []byte(`"zero-trust"`)}, {Raw: []byte(`"nic"`)},
			}},
			"grub": {Type: "object", Properties: props{"kernelParameters": texts}},
			"ovs":  {Type: "object", Properties: props{"rawConfigScript": text}},
		},
	}

	return definition("DPUFlavor", &schema{
		Type: "object",
		Properties: props{
			"apiVersion": {Type: "string"}, "kind": {Type: "string"}, "metadata": {Type: "object"}, "spec": spec,
		},
	})
}
