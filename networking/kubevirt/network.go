// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

const (
	// Interface is the name of the network interface in a guest that gets the addresses. The guest derives
	// the name from acpiIndex (systemd.net-naming-scheme: en + o + index).
	Interface = "eno101"
	// acpiIndex is the ACPI index of this interface in the VirtualMachine.
	acpiIndex = 101
)

// Network is a network to which the machines of a pool are attached.
type Network struct {
	// Name is the name of the network in the VirtualMachine.
	Name string
	// Definition is the NetworkAttachmentDefinition as NAMESPACE/NAME. It is also the key of the network in
	// the address registry.
	Definition string
}

// Networks returns the pool's additional networks with their names in the VirtualMachine. The names are the
// same as in HyperShift, such as iface1_NAMESPACE-NAME. If the pool has only one network and sets
// bootstrapNetworkConfig.network, this field is the name.
func Networks(pool *v1alpha1.KubevirtNodePool) []Network {
	out := make([]Network, 0, len(pool.Spec.AdditionalNetworks))

	for i, network := range pool.Spec.AdditionalNetworks {
		definition := qualifyName(network.Name, pool.Namespace)
		name := strings.NewReplacer("/", "-", ".", "-").Replace(definition)
		out = append(out, Network{Name: fmt.Sprintf("iface%d_%s", i+1, name), Definition: definition})
	}

	if config := pool.Spec.BootstrapNetworkConfig; config != nil && config.Network != "" && len(out) == 1 {
		out[0].Name = config.Network
	}

	return out
}

// qualifyName returns the name of a NetworkAttachmentDefinition with its namespace. namespace is the default.
func qualifyName(name, namespace string) string {
	if strings.Contains(name, "/") {
		return name
	}

	return namespace + "/" + name
}

// BootstrapNetwork returns the network to which the pool's addresses belong.
func BootstrapNetwork(pool *v1alpha1.KubevirtNodePool) (Network, error) {
	networks := Networks(pool)
	name := pool.Spec.BootstrapNetworkConfig.Network

	if len(networks) == 0 {
		return Network{}, errors.New("find the network of the addresses: additionalNetworks is empty: add a network")
	}

	names := make([]string, 0, len(networks))

	for _, network := range networks {
		if name == "" || network.Name == name {
			return network, nil
		}

		names = append(names, network.Name)
	}

	return Network{}, fmt.Errorf("find the network of the addresses: bootstrapNetworkConfig.network %q is not one of %s",
		name, strings.Join(names, ", "))
}

// PoolName returns the name of a node pool's address pool in the address registry.
func PoolName(namespace, pool string) string { return namespace + "/" + pool }

// OwnerKey returns the owner of a machine's addresses in the address registry.
func OwnerKey(machine *v1alpha1.KubevirtMachine) string {
	return OwnerKeyPrefix(machine.Namespace, machine.Name) + string(machine.UID)
}

// OwnerKeyPrefix returns the common prefix of the owners of all machines with this name, old and new.
func OwnerKeyPrefix(namespace, name string) string { return namespace + "/" + name + "/" }

// ClusterName returns the name of the cluster that the pool's machines join. The default is the name of the
// pool.
func ClusterName(pool *v1alpha1.KubevirtNodePool) string {
	if pool.Spec.ClusterName != "" {
		return pool.Spec.ClusterName
	}

	return pool.Name
}

// NewAddressPool validates the pool's addresses and returns their address pool. The error has the problem
// of each invalid field.
func NewAddressPool(pool *v1alpha1.KubevirtNodePool) (*alloc.Pool, error) {
	config := pool.Spec.BootstrapNetworkConfig

	out, err := alloc.NewPool(PoolName(pool.Namespace, pool.Name), alloc.NewSpec(
		config.Addresses, config.ExcludedAddresses, config.Gateway, config.PrefixLengthV4, config.PrefixLengthV6))
	if err != nil {
		return nil, fmt.Errorf("validate bootstrapNetworkConfig: %w", err)
	}

	return out, nil
}

// newNetworkTemplate returns the network data of all of a pool's machines, without addresses. It expands
// the network data with an example address first, and returns an error if this fails.
func newNetworkTemplate(config *v1alpha1.KubevirtBootstrapNetworkConfig) (string, error) {
	data := []byte(config.NetworkData)

	if len(data) == 0 {
		link := netdata.Link{ID: Interface, Name: Interface}

		for _, text := range config.Gateway {
			gateway, err := netip.ParseAddr(string(text))
			if err != nil {
				return "", fmt.Errorf("parse gateway %q: %w", text, err)
			}

			link.Routes = append(link.Routes, netdata.DefaultRoute(gateway))
		}

		network := netdata.Network{Links: []netdata.Link{link}}

		for _, text := range config.Nameservers {
			server, err := netip.ParseAddr(string(text))
			if err != nil {
				return "", fmt.Errorf("parse name server %q: %w", text, err)
			}

			network.DNS.Servers = append(network.DNS.Servers, server)
		}

		rendered, err := network.EncodeOpenStack()
		if err != nil {
			return "", fmt.Errorf("render network data: %w", err)
		}

		data = rendered
	}

	example := netdata.Allocation{Interface: Interface, MAC: "02:00:00:00:00:01"}
	if _, _, err := netdata.Expand(data, example); err != nil {
		return "", fmt.Errorf("validate bootstrapNetworkConfig.networkData: %w", err)
	}

	return string(data), nil
}

// RenderNetworkData returns a machine's network data with its addresses and the MAC address of their
// interface, and the format of the data.
func RenderNetworkData(
	machine *v1alpha1.KubevirtMachine, mac string, addresses []netip.Prefix,
) ([]byte, netdata.Format, error) {
	config := machine.Spec.BootstrapNetworkConfig

	data := ""
	if config.NetworkData != nil {
		data = *config.NetworkData
	}

	if data == "" {
		network := netdata.Network{Links: []netdata.Link{{ID: config.Interface, Name: config.Interface}}}

		rendered, err := network.EncodeOpenStack()
		if err != nil {
			return nil, "", fmt.Errorf("render network data: %w", err)
		}

		data = string(rendered)
	}

	out, format, err := netdata.Expand([]byte(data), netdata.Allocation{
		Interface: config.Interface, MAC: mac, Addresses: addresses,
	})
	if err != nil {
		return nil, "", fmt.Errorf("expand networkData with addresses: %w", err)
	}

	return out, format, nil
}

// NetworkKey returns the key of the network to which a machine's addresses belong. It reads the key from the
// machine's virtualMachineTemplate.
func NetworkKey(machine *v1alpha1.KubevirtMachine) (string, error) {
	vm, err := parseTemplate(machine)
	if err != nil {
		return "", err
	}

	name := machine.Spec.BootstrapNetworkConfig.NetworkName

	network := findItem(vm, name, podNetworksPath...)
	if network == nil {
		return "", fmt.Errorf(
			"find network %q: virtualMachineTemplate has no network with this name in spec.template.spec.networks", name)
	}

	definition, _, _ := unstructured.NestedString(network, "multus", "networkName")
	if definition == "" {
		return "", fmt.Errorf("find network %q: it has no multus.networkName, but static addresses need a Multus network", name)
	}

	return qualifyName(definition, machine.Namespace), nil
}
