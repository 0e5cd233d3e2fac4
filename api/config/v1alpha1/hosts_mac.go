// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

// MacHosts is what all ScalewayAppleSiliconMachines get. Without a kubelet there are none.
type MacHosts struct {
	// TartKubeletFile is the program that runs machines. Empty: nothing is brought to
	// ScalewayAppleSiliconMachines.
	TartKubeletFile string `yaml:"tartKubeletFile"`
	// TartFile is a release of Tart, as its project packs it (tart.tar.gz). It is brought to
	// new hosts alone, because running machines would not survive another one.
	TartFile string `yaml:"tartFile"`
	// MaxPods is the most machines at a time on one host: 1 or 2.
	MaxPods int `yaml:"maxPods"`
	// NodeLabels of the hosts' Nodes.
	NodeLabels map[string]string `yaml:"nodeLabels"`
	// NodeExporterFile is node_exporter.
	NodeExporterFile string `yaml:"nodeExporterFile"`
	// VMEgressCIDR is a network that machines may reach of those that are shut to them, and
	// VMDNSIP is a DNS server. Empty for none.
	VMEgressCIDR string `yaml:"vmEgressCIDR"`
	VMDNSIP      string `yaml:"vmDNSIP"`
	// PrivateNetworkCIDR is the private network that machines may reach. Each host then needs
	// its tag there (privateNetworkVLAN). Empty for none.
	PrivateNetworkCIDR string `yaml:"privateNetworkCIDR"`
	// Tailnet the hosts are in.
	Tailnet Tailnet `yaml:"tailnet"`
}
