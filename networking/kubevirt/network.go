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
	// Interface is the network interface in machines that gets the addresses. A guest
	// names it after acpiIndex (systemd.net-naming-scheme: en + o + index).
	Interface = "eno101"
	// acpiIndex of that interface in the VirtualMachine.
	acpiIndex = 101
)

// Network is one that the machines of a pool are attached to.
type Network struct {
	// Name in the VirtualMachine.
	Name string
	// Definition is the NetworkAttachmentDefinition as NAMESPACE/NAME. It is also the key
	// of the network among the pools of addresses.
	Definition string
}

// Networks are the pool's additional networks, with the names that they have in the
// VirtualMachine: those that HyperShift gives, iface1_NAMESPACE-NAME and so on. With only
// one, bootstrapNetworkConfig.network is its name.
func Networks(pool *v1alpha1.KubevirtNodePool) []Network {
	out := make([]Network, 0, len(pool.Spec.AdditionalNetworks))

	for i, network := range pool.Spec.AdditionalNetworks {
		definition := qualified(network.Name, pool.Namespace)
		name := strings.NewReplacer("/", "-", ".", "-").Replace(definition)
		out = append(out, Network{Name: fmt.Sprintf("iface%d_%s", i+1, name), Definition: definition})
	}

	if config := pool.Spec.BootstrapNetworkConfig; config != nil && config.Network != "" && len(out) == 1 {
		out[0].Name = config.Network
	}

	return out
}

// qualified is a definition's name with its namespace.
func qualified(name, namespace string) string {
	if strings.Contains(name, "/") {
		return name
	}

	return namespace + "/" + name
}

// Bootstrap is the network that the pool's addresses are on.
func Bootstrap(pool *v1alpha1.KubevirtNodePool) (Network, error) {
	networks := Networks(pool)
	want := pool.Spec.BootstrapNetworkConfig.Network

	if len(networks) == 0 {
		return Network{}, errors.New("find the network of the addresses: there are no additionalNetworks: list one")
	}

	names := make([]string, 0, len(networks))

	for _, network := range networks {
		if want == "" || network.Name == want {
			return network, nil
		}

		names = append(names, network.Name)
	}

	return Network{}, fmt.Errorf("find the network of the addresses: bootstrapNetworkConfig.network %q is none of %s",
		want, strings.Join(names, ", "))
}

// PoolName is the name of a node pool's addresses in the address registry.
func PoolName(namespace, pool string) string { return namespace + "/" + pool }

// Owner is a machine in the address registry.
func Owner(machine *v1alpha1.KubevirtMachine) string {
	return OwnerPrefix(machine.Namespace, machine.Name) + string(machine.UID)
}

// OwnerPrefix is what the owners begin with that were machines of this name.
func OwnerPrefix(namespace, name string) string { return namespace + "/" + name + "/" }

// ClusterName is the cluster that the pool's machines join.
func ClusterName(pool *v1alpha1.KubevirtNodePool) string {
	if pool.Spec.ClusterName != "" {
		return pool.Spec.ClusterName
	}

	return pool.Name
}

// AddressPool checks the pool's addresses. The error says of each field what is wrong.
func AddressPool(pool *v1alpha1.KubevirtNodePool) (*alloc.Pool, error) {
	config := pool.Spec.BootstrapNetworkConfig

	out, err := alloc.NewPool(PoolName(pool.Namespace, pool.Name), alloc.SpecOf(
		config.Addresses, config.ExcludedAddresses, config.Gateway, config.PrefixLengthV4, config.PrefixLengthV6))
	if err != nil {
		return nil, fmt.Errorf("read bootstrapNetworkConfig: %w", err)
	}

	return out, nil
}

// networkTemplate is the network data of all of a pool's machines, without addresses. It
// has been tried with addresses.
func networkTemplate(config *v1alpha1.KubevirtBootstrapNetworkConfig) (string, error) {
	data := []byte(config.NetworkData)

	if len(data) == 0 {
		link := netdata.Link{ID: Interface, Name: Interface}

		for _, text := range config.Gateway {
			gateway, err := netip.ParseAddr(string(text))
			if err != nil {
				return "", fmt.Errorf("read gateway %q: %w", text, err)
			}

			link.Routes = append(link.Routes, netdata.Default(gateway))
		}

		network := netdata.Network{Links: []netdata.Link{link}}

		for _, text := range config.Nameservers {
			server, err := netip.ParseAddr(string(text))
			if err != nil {
				return "", fmt.Errorf("read name server %q: %w", text, err)
			}

			network.DNS.Servers = append(network.DNS.Servers, server)
		}

		made, err := network.OpenStackTemplate()
		if err != nil {
			return "", fmt.Errorf("make network data: %w", err)
		}

		data = made
	}

	example := netdata.Allocation{Interface: Interface, MAC: "02:00:00:00:00:01"}
	if _, _, err := netdata.Expand(data, example); err != nil {
		return "", fmt.Errorf("read bootstrapNetworkConfig.networkData: %w", err)
	}

	return string(data), nil
}

// NetworkData are a machine's network data with its addresses, and their format.
func NetworkData(machine *v1alpha1.KubevirtMachine, addresses []netip.Prefix) ([]byte, netdata.Format, error) {
	config := machine.Spec.BootstrapNetworkConfig

	data := ""
	if config.NetworkData != nil {
		data = *config.NetworkData
	}

	if data == "" {
		network := netdata.Network{Links: []netdata.Link{{ID: config.Interface, Name: config.Interface}}}

		made, err := network.OpenStackTemplate()
		if err != nil {
			return nil, "", fmt.Errorf("make network data: %w", err)
		}

		data = string(made)
	}

	mac, err := MAC(machine)
	if err != nil {
		return nil, "", err
	}

	out, format, err := netdata.Expand([]byte(data), netdata.Allocation{
		Interface: config.Interface, MAC: mac, Addresses: addresses,
	})
	if err != nil {
		return nil, "", fmt.Errorf("put addresses into networkData: %w", err)
	}

	return out, format, nil
}

// NetworkOf is the key of the network that a machine's addresses are on, as its template
// says.
func NetworkOf(machine *v1alpha1.KubevirtMachine) (string, error) {
	vm, err := template(machine)
	if err != nil {
		return "", err
	}

	name := machine.Spec.BootstrapNetworkConfig.NetworkName

	network := item(vm, name, podNetworks...)
	if network == nil {
		return "", fmt.Errorf("find network %q: virtualMachineTemplate has none of this name in spec.template.spec.networks", name)
	}

	definition, _, _ := unstructured.NestedString(network, "multus", "networkName")
	if definition == "" {
		return "", fmt.Errorf("find network %q: it has no multus.networkName: static addresses are for networks of Multus", name)
	}

	return qualified(definition, machine.Namespace), nil
}
