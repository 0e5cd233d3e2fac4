// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// MacHosts is the configuration of all ScalewayAppleSiliconMachines. Without tartKubeletFile, nothing is
// pushed to them.
type MacHosts struct {
	// TartKubeletFile is the path of the program that runs VMs on the hosts. If it is empty, nothing is
	// pushed to ScalewayAppleSiliconMachines.
	TartKubeletFile string `yaml:"tartKubeletFile"`
	// TartFile is the path of a release of Tart, as its project packages it (tart.tar.gz). It is only
	// pushed to new hosts, because running VMs would not survive another release.
	TartFile string `yaml:"tartFile"`
	// MaxPods is the maximum number of VMs on a host: 1 or 2.
	MaxPods int `yaml:"maxPods"`
	// NodeLabels are the labels of the hosts' Nodes.
	NodeLabels map[string]string `yaml:"nodeLabels"`
	// NodeExporterFile is the path of the program node_exporter.
	NodeExporterFile string `yaml:"nodeExporterFile"`
	// VMEgressCIDR is a network that VMs may reach although it is blocked by default.
	VMEgressCIDR string `yaml:"vmEgressCIDR"`
	// VMDNSIP is the address of a DNS server that VMs may reach.
	VMDNSIP string `yaml:"vmDNSIP"`
	// PrivateNetworkCIDR is the private network that VMs may reach. If it is set, each host needs its
	// VLAN tag in that network (privateNetworkVLAN).
	PrivateNetworkCIDR string `yaml:"privateNetworkCIDR"`
	// Tailnet is the tailnet that the hosts join.
	Tailnet Tailnet `yaml:"tailnet"`
}
