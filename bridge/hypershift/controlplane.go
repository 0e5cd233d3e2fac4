// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift

import (
	"slices"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// Fields of a HostedCluster that say where its control plane's pods run, and how they are
// labelled.
const (
	fieldNodeSelector = "nodeSelector"
	fieldTolerations  = "tolerations"
	fieldLabels       = "labels"
)

// networking is the networks of a hosted cluster. A bridge of a definition that has no such
// field has the defaults.
func networking(of *v1alpha1.Networking) fields {
	pods := of.ClusterNetwork
	if len(pods) == 0 {
		pods = []v1alpha1.ClusterNetwork{{CIDR: v1alpha1.DefaultClusterNetwork}}
	}

	services := of.ServiceNetwork
	if len(services) == 0 {
		services = []v1alpha1.Network{{CIDR: v1alpha1.DefaultServiceNetwork}}
	}

	var cluster list

	for _, n := range pods {
		network := fields{"cidr": string(n.CIDR)}
		if n.HostPrefix != 0 {
			network["hostPrefix"] = int64(n.HostPrefix)
		}

		cluster = append(cluster, network)
	}

	out := fields{
		"networkType":       "Other", // DPF brings its own
		"allocateNodeCIDRs": "Enabled",
		"clusterNetwork":    cluster,
		"serviceNetwork":    networks(services),
	}

	if len(of.MachineNetwork) > 0 {
		out["machineNetwork"] = networks(of.MachineNetwork)
	}

	return out
}

func networks(of []v1alpha1.Network) list {
	var out list
	for _, n := range of {
		out = append(out, fields{"cidr": string(n.CIDR)})
	}

	return out
}

// placed adds to a HostedCluster's spec where its control plane runs, how it is labelled and
// what it is made without.
func placed(where *v1alpha1.ControlPlane, spec fields) fields {
	if where == nil {
		return spec
	}

	if len(where.NodeSelector) > 0 {
		spec[fieldNodeSelector] = words(where.NodeSelector)
	}

	if len(where.Labels) > 0 {
		spec[fieldLabels] = words(where.Labels)
	}

	if len(where.Tolerations) > 0 {
		spec[fieldTolerations] = tolerations(where.Tolerations)
	}

	if len(where.DisabledCapabilities) > 0 {
		var disabled list
		for _, capability := range slices.Sorted(slices.Values(where.DisabledCapabilities)) {
			disabled = append(disabled, capability)
		}

		spec["capabilities"] = fields{"disabled": disabled}
	}

	return spec
}

func words(of map[string]v1alpha1.LabelValue) fields {
	out := fields{}
	for key, value := range of {
		out[key] = string(value)
	}

	return out
}

func tolerations(of []v1alpha1.Toleration) list {
	var out list

	for _, t := range of {
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
