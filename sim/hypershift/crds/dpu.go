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
