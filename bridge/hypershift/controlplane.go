// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"slices"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// Fields of a HostedCluster that define where its control plane's pods run and which labels the pods
// have.
const (
	fieldNodeSelector = "nodeSelector"
	fieldTolerations  = "tolerations"
	fieldLabels       = "labels"
)

// newNetworking returns the networks of a hosted cluster. A bridge that was created with a CRD without
// these fields gets the defaults.
func newNetworking(config *v1alpha1.Networking) fields {
	pods := config.ClusterNetwork
	if len(pods) == 0 {
		pods = []v1alpha1.ClusterNetwork{{CIDR: v1alpha1.DefaultClusterNetwork}}
	}

	services := config.ServiceNetwork
	if len(services) == 0 {
		services = []v1alpha1.Network{{CIDR: v1alpha1.DefaultServiceNetwork}}
	}

	var clusterNetwork list

	for _, n := range pods {
		network := fields{"cidr": string(n.CIDR)}
		if n.HostPrefix != 0 {
			network["hostPrefix"] = int64(n.HostPrefix)
		}

		clusterNetwork = append(clusterNetwork, network)
	}

	out := fields{
		"networkType":       "Other", // DPF installs its own network plugin
		"allocateNodeCIDRs": "Enabled",
		"clusterNetwork":    clusterNetwork,
		"serviceNetwork":    newNetworks(services),
	}

	if len(config.MachineNetwork) > 0 {
		out["machineNetwork"] = newNetworks(config.MachineNetwork)
	}

	return out
}

func newNetworks(items []v1alpha1.Network) list {
	var out list
	for _, network := range items {
		out = append(out, fields{"cidr": string(network.CIDR)})
	}

	return out
}

// withControlPlane adds to a HostedCluster's spec where its control plane runs, the labels of its pods
// and the disabled capabilities.
func withControlPlane(controlPlane *v1alpha1.ControlPlane, spec fields) fields {
	if controlPlane == nil {
		return spec
	}

	if len(controlPlane.NodeSelector) > 0 {
		spec[fieldNodeSelector] = toFields(controlPlane.NodeSelector)
	}

	if len(controlPlane.Labels) > 0 {
		spec[fieldLabels] = toFields(controlPlane.Labels)
	}

	if len(controlPlane.Tolerations) > 0 {
		spec[fieldTolerations] = newTolerations(controlPlane.Tolerations)
	}

	if len(controlPlane.DisabledCapabilities) > 0 {
		var disabled list
		for _, capability := range slices.Sorted(slices.Values(controlPlane.DisabledCapabilities)) {
			disabled = append(disabled, capability)
		}

		spec["capabilities"] = fields{"disabled": disabled}
	}

	return spec
}

func toFields(labels map[string]v1alpha1.LabelValue) fields {
	out := fields{}
	for key, value := range labels {
		out[key] = string(value)
	}

	return out
}

func newTolerations(items []v1alpha1.Toleration) list {
	var out list

	for _, t := range items {
		toleration := fields{}

		for key, value := range map[string]string{"key": t.Key, "operator": t.Operator, "value": string(t.Value), "effect": t.Effect} {
			if value != "" {
				toleration[key] = value
			}
		}

		if t.TolerationSeconds != nil {
			toleration["tolerationSeconds"] = *t.TolerationSeconds
		}

		out = append(out, toleration)
	}

	return out
}
