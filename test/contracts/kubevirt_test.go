// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"slices"
	"testing"
)

const (
	baseNodePool = `
apiVersion: infrastructure.hyperfleet.io/v1alpha1
kind: KubevirtNodePool
metadata: {name: base, namespace: default}
spec:
  rootVolume: {diskImage: {containerDiskImage: quay.io/containerdisks/fedora:42}}
`
	baseStaticPool = baseNodePool + `
  attachDefaultNetwork: false
  additionalNetworks: [{name: machines}]
  bootstrapNetworkConfig: {addresses: [192.168.1.10-192.168.1.50], gateway: [192.168.1.1]}
`
	baseDHCPMachine = `
apiVersion: infrastructure.hyperfleet.io/v1alpha1
kind: KubevirtMachine
metadata: {name: base, namespace: default}
spec:
  virtualMachineTemplate: {spec: {template: {spec: {domain: {devices: {}}}}}}
`
	baseMachine = baseDHCPMachine + `
  bootstrapNetworkConfig: {networkName: iface1_default-machines, subnets: [192.168.1.0/24]}
`
	baseMachineTemplate = `
apiVersion: infrastructure.hyperfleet.io/v1alpha1
kind: KubevirtMachineTemplate
metadata: {name: base, namespace: default}
spec:
  template:
    spec:
      virtualMachineTemplate: {spec: {template: {spec: {domain: {devices: {}}}}}}
      bootstrapNetworkConfig: {networkName: iface1_default-machines, subnets: [192.168.1.0/24]}
`
)

// listAddressRejections has the rejections of a list of addresses at a path.
func listAddressRejections(path string) []rejection {
	const (
		grammar  = "write a CIDR (10.0.0.0/24), a range of two addresses"
		families = "both ends of a range must be of one address family"
		bits     = "a CIDR must not have bits beyond its prefix"
	)

	item := path + "[0]"
	row := func(why, entry, want string) rejection { return rejection{why, change{path: list{entry}}, item, want} }

	return []rejection{
		row("bare IPv4 address", "10.0.0.5", grammar),
		row("bare IPv6 address", "fd00::5", grammar),
		row("word", "machines", grammar),
		row("nothing", "", grammar),
		row("CIDR too long", "10.0.0.0/33", grammar),
		row("range of three", "10.0.0.1-10.0.0.2-10.0.0.3", grammar),
		row("range without end", "10.0.0.1-", grammar),
		row("range with a short end", "10.0.0.1-20", grammar),
		row("IPv4 written as IPv6", "::ffff:10.0.0.1-::ffff:10.0.0.2", grammar),
		row("address with a zone", "fe80::1%eth0-fe80::2%eth0", grammar),
		row("range of two families", "10.0.0.1-fd00::5", families),
		row("CIDR with bits beyond its prefix", "10.0.0.5/24", bits),
	}
}

func listNodePoolRejections() []rejection {
	const (
		config  = "spec.bootstrapNetworkConfig"
		gateway = config + ".gateway"
		image   = "spec.rootVolume.diskImage.containerDiskImage"
	)

	rows := []rejection{
		{"no addresses", change{config + ".addresses": list{}}, config + ".addresses", "should have at least 1 items"},
		{"addresses left out", change{config + ".addresses": removed{}}, config + ".addresses", "Required value"},
		{"gateway with a length", change{gateway: list{"192.168.1.1/24"}}, gateway + "[0]", "it must be an IP address such as"},
		{"name server by name", change{config + ".nameservers": list{"dns.example.com"}}, "nameservers[0]", "it must be an IP address such as"},
		{
			"three gateways of one family", change{gateway: list{"192.168.1.1", "192.168.1.2", "192.168.1.3"}}, gateway,
			"gateway must have at most two addresses of each address family",
		},
		{
			"three IPv6 gateways", change{gateway: list{"192.168.1.1", "fd00::1", "fd00::2", "fd00::3"}}, gateway,
			"gateway must have at most two addresses of each address family",
		},
		{"IPv4 length without addresses", change{config + ".addresses": list{"fd00::/64"}, config + ".prefixLengthV4": int64(24)}, config, "prefixLengthV4 needs IPv4 addresses"},
		{"IPv6 length without addresses", change{config + ".prefixLengthV6": int64(64)}, config, "prefixLengthV6 needs IPv6 addresses"},
		{"network with a slash", change{config + ".network": "default/machines"}, config + ".network", "network must be the name of a network in the VirtualMachine"},
		{"default network as well", change{"spec.attachDefaultNetwork": true}, "spec", "bootstrapNetworkConfig needs attachDefaultNetwork: false"},
		{"default network by default", change{"spec.attachDefaultNetwork": removed{}}, "spec", "bootstrapNetworkConfig needs attachDefaultNetwork: false"},
		{"no network", change{"spec.additionalNetworks": removed{}}, "spec", "attachDefaultNetwork: false needs at least one network in additionalNetworks"},
		{"empty list of networks", change{"spec.additionalNetworks": list{}}, "spec", "attachDefaultNetwork: false needs at least one network in additionalNetworks"},
		{"network by two slashes", change{"spec.additionalNetworks": list{anyMap{"name": "a/b/c"}}}, "spec.additionalNetworks[0].name", "name must be the name of a NetworkAttachmentDefinition"},
		{"network twice", change{"spec.additionalNetworks": list{anyMap{"name": "a"}, anyMap{"name": "a"}}}, "spec.additionalNetworks[1]", "Duplicate value"},
		{"more replicas than maxReplicas", change{"spec.replicas": int64(4), "spec.maxReplicas": int64(3)}, "spec", "replicas must not be more than maxReplicas"},
		{"cluster with a dot", change{"spec.clusterName": "a.b"}, "spec.clusterName", "clusterName must be the name of a cluster"},
		{"image with a blank", change{image: "fedora 42"}, image, "containerDiskImage must be the name of a container image"},
		{"no image", change{"spec.rootVolume": anyMap{}}, "spec.rootVolume.diskImage", "Required value"},
		{"disk of size 0", change{"spec.rootVolume.persistent": anyMap{"size": "0"}}, "persistent.size", "size must be at least 1Mi" + unit + "32Gi"},
		{"disk size as text", change{"spec.rootVolume.persistent": anyMap{"size": "large"}}, "persistent.size", "size must be at least 1Mi" + unit + "32Gi"},
		{"storage class", change{"spec.rootVolume.persistent": anyMap{"storageClass": "Fast One"}}, "persistent.storageClass", "storageClass must be the name of a StorageClass"},
		{"memory with an exponent", change{"spec.compute": anyMap{"memory": "1e999999999"}}, "spec.compute.memory", "memory must be at least 64Mi" + unit + "8Gi"},
		{"memory without unit", change{"spec.compute": anyMap{"memory": int64(8)}}, "spec.compute.memory", "memory must be at least 64Mi" + unit + "8Gi"},
		{"drain by a path", change{"spec.drain": anyMap{"kubeconfigSecretRef": anyMap{"name": "a/b", "key": "k"}}}, "spec.drain.kubeconfigSecretRef.name", "name must be the name of a Secret"},
		{"drain by no key", change{"spec.drain": anyMap{"kubeconfigSecretRef": anyMap{"name": "a", "key": "a b"}}}, "spec.drain.kubeconfigSecretRef.key", "key must be a key of a Secret"},
		{
			"drain of no time",
			change{"spec.drain": anyMap{"kubeconfigSecretRef": anyMap{"name": "a", "key": "k"}, "timeout": "0s"}},
			"spec.drain.timeout", "drain.timeout must be a time of one second to 24 hours",
		},
		{
			"user data of an unknown kind",
			change{"spec.userDataSecrets": "Each", "spec.userDataSecretRef": anyMap{"name": "a"}}, "spec.userDataSecrets", "Unsupported value",
		},
		{"user data without a name", change{"spec.userDataSecrets": "PerMachine"}, "spec", "userDataSecrets needs userDataSecretRef"},
		{"user data by path", change{"spec.userDataSecretRef": anyMap{"name": "a/b"}}, "spec.userDataSecretRef.name", "name must be the name of an object"},
		{
			"domain with a dot at its end",
			change{"spec.dns": anyMap{"hypervisorClusterRef": anyMap{"name": "c"}, "domain": "nodes.example.com."}},
			"spec.dns.domain", "dns.domain must be a DNS name",
		},
		{"drain in no time", changeDrain("kubeconfig", "key", "0s"), "spec.drain.timeout", "drain.timeout must be a time of one second to 24 hours"},
		{"drain by no Secret", changeDrain("Guest", "key", "1m"), "spec.drain.kubeconfigSecretRef.name", "name must be the name of a Secret"},
		{"drain by no key", changeDrain("guest", "a key", "1m"), "spec.drain.kubeconfigSecretRef.key", "key must be a key of a Secret"},
		{
			"names at no cluster", change{"spec.dns": anyMap{"domain": "nodes.example.com"}},
			"spec.dns.hypervisorClusterRef", "Required value",
		},
		{"name too long for hosts", change{"metadata.name": "a-name-of-a-pool-that-is-too-long-for-the-names-of-its-hosts"}, "KubevirtNodePool", "the name must have at most 54 characters and no dot"},
		{"name with a dot", change{"metadata.name": "a.b"}, "KubevirtNodePool", "the name must have at most 54 characters and no dot"},
	}

	rows = append(rows, listAddressRejections(config+".addresses")...)

	return append(rows, listAddressRejections(config+".excludedAddresses")...)
}

// listMachineRejections has the rejections of a KubevirtMachineSpec at a path.
func listMachineRejections(path string) []rejection {
	config := path + ".bootstrapNetworkConfig"

	return slices.Concat([]rejection{
		{"no VirtualMachine", change{path + ".virtualMachineTemplate": removed{}}, path + ".virtualMachineTemplate", "Required value"},
		{"no network", change{config + ".networkName": removed{}}, config + ".networkName", "Required value"},
		{"interface by path", change{config + ".interface": "eth0/1"}, config + ".interface", "interface must be the name of a network interface"},
		{"no subnets", change{config + ".subnets": list{}}, config + ".subnets", "should have at least 1 items"},
		{"subnets left out", change{config + ".subnets": removed{}}, config + ".subnets", "Required value"},
	}, listAddressRejections(config+".subnets"), listAddressRejections(config+".excludedAddresses"))
}

func listKubevirtMachineRejections() []rejection {
	name := "a-machine-whose-name-is-longer-than-a-host-name-can-be-of-64-chars"

	return append([]rejection{
		{"name too long for a host", change{"metadata.name": name}, "KubevirtMachine", "the name must have at most 63 characters"},
	}, listMachineRejections("spec")...)
}

func listKubevirtUpdates() []update {
	const (
		fixed    = "bootstrapNetworkConfig cannot be changed: delete the machine and create a new one"
		config   = "spec.bootstrapNetworkConfig"
		template = "spec.template.spec.bootstrapNetworkConfig"
	)

	return []update{
		{"machine with other addresses", baseMachine, change{config + ".subnets": list{"192.168.2.0/24"}}, fixed},
		{"machine on another network", baseMachine, change{config + ".networkName": "iface2_default-other"}, fixed},
		{"machine without addresses", baseMachine, change{config: removed{}}, fixed},
		{
			"machine with DHCP gets addresses", baseDHCPMachine,
			change{config: anyMap{"networkName": "iface1_default-machines", "subnets": list{"192.168.1.0/24"}}}, fixed,
		},
		{"machine with a label", baseMachine, change{"metadata.labels": anyMap{"a": "b"}}, ""},
		{"template with other addresses", baseMachineTemplate, change{template + ".subnets": list{"192.168.2.0/24"}}, fixed},
		{"template with an exclusion", baseMachineTemplate, change{template + ".excludedAddresses": list{"192.168.1.7/32"}}, fixed},
		{"pool of another cluster", baseNodePool, change{"spec.clusterName": "other"}, "clusterName cannot be changed: create another pool"},
		{"pool grows", baseStaticPool, change{config + ".addresses": list{"192.168.1.10-192.168.1.99"}}, ""},
		{"pool turns to DHCP", baseStaticPool, change{config: removed{}}, ""},
		{"pool scales", baseNodePool, change{"spec.replicas": int64(5)}, ""},
	}
}

// changeDrain sets a pool's drain.
func changeDrain(secret, key, timeout string) change {
	return change{"spec.drain": anyMap{"kubeconfigSecretRef": anyMap{"name": secret, "key": key}, "timeout": timeout}}
}

// The addresses are recorded under the interface, each with its prefix length, as in the example of document 002.
func TestMachineStatusIsKept(t *testing.T) {
	t.Parallel()
	requireStatusKept(t, baseMachine, anyMap{
		"allocatedBootstrapAddresses": anyMap{"ens123": list{"10.10.0.42/24", "fd41:1234::932/64"}}, "bootstrapNetwork": "ci/machines",
	})
}
