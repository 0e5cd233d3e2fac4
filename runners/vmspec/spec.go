// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"net/netip"
	"strconv"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// TemplateRef is the hypervisor's template that a template is about.
func TemplateRef(template *v1alpha1.HypervisorMachineTemplate) hypervisor.TemplateRef {
	if source := template.Spec.Template.KubeVirt; source != nil {
		return kubeVirtRef(source)
	}

	source := template.Spec.Template.Proxmox
	if source == nil {
		return hypervisor.TemplateRef{}
	}

	ref := hypervisor.TemplateRef{Name: source.TemplateName}
	if source.TemplateID != nil {
		ref.ID = int(*source.TemplateID)
	}

	return ref
}

func kubeVirtRef(source *v1alpha1.KubeVirtTemplate) hypervisor.TemplateRef {
	switch {
	case source.ContainerDisk != nil:
		return hypervisor.TemplateRef{
			Kind: hypervisor.TemplateImage, Name: source.ContainerDisk.Image, PullSecret: source.ContainerDisk.ImagePullSecret,
		}
	case source.DataSource != nil:
		return hypervisor.TemplateRef{
			Kind: hypervisor.TemplateDataSource, Namespace: source.DataSource.Namespace, Name: source.DataSource.Name,
		}
	case source.PersistentVolumeClaim != nil:
		return hypervisor.TemplateRef{
			Kind:      hypervisor.TemplateVolume,
			Namespace: source.PersistentVolumeClaim.Namespace, Name: source.PersistentVolumeClaim.Name,
		}
	default:
		return hypervisor.TemplateRef{}
	}
}

// CheckProvider makes sure that the template is for the cluster's kind of hypervisor. The
// error is of class Configuration.
func CheckProvider(template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster) error {
	source := &template.Spec.Template

	fits := map[string]bool{
		v1alpha1.ProviderProxmox: source.Proxmox != nil, v1alpha1.ProviderKubeVirt: source.KubeVirt != nil,
	}
	if fits[cluster.Spec.Provider] {
		return nil
	}

	return errclass.New(errclass.Configuration, "ProviderMismatch",
		"HypervisorCluster %s is of provider %s: set template.%[2]s, or name another cluster in spec.hypervisorClusterRef",
		cluster.Name, cluster.Spec.Provider)
}

// Shape is what machines made from the template look like.
func Shape(template *v1alpha1.HypervisorMachineTemplate) hypervisor.Shape {
	spec := &template.Spec
	shape := hypervisor.Shape{
		CPU:             int(spec.Resources.CPU),
		Memory:          spec.Resources.Memory.Value(),
		CloudInitSource: hypervisor.SourceNoCloud,
		Linked:          true,
		TPM:             HasTPM(template),
	}

	if spec.Resources.Disk != nil {
		shape.Disk = spec.Resources.Disk.Value()
	}

	if source := spec.Template.Proxmox; source != nil {
		shape.Linked = source.LinkedClone == nil || *source.LinkedClone
		shape.Storage = source.Storage
		shape.SnippetsStorage = source.SnippetsStorage

		if source.CloudInitSource != "" {
			shape.CloudInitSource = source.CloudInitSource
		}
	}

	if source := spec.Template.KubeVirt; source != nil {
		shape.Linked = source.ContainerDisk != nil
		shape.Storage, shape.Bridge = source.StorageClassName, source.Network

		return shape
	}

	if network := spec.Network; network != nil {
		shape.Bridge = network.Bridge
		if network.VLAN != nil {
			shape.VLAN = int(*network.VLAN)
		}
	}

	return shape
}

// Owner is the identity that the claim's machine carries.
func Owner(claim *v1alpha1.MachineClaim) hypervisor.Owner {
	owner := hypervisor.Owner{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}
	if claim.Spec.RunnerPoolRef != nil {
		owner.Pool = claim.Spec.RunnerPoolRef.Name
	}

	return owner
}

// Ref names the claim's machine; its ID is 0 until one was reserved.
func Ref(claim *v1alpha1.MachineClaim) hypervisor.MachineRef {
	ref := hypervisor.MachineRef{Owner: Owner(claim)}
	if claim.Status.VMRef != nil {
		ref.ID, _ = strconv.Atoi(claim.Status.VMRef.VMID)
	}

	return ref
}

// Spec is the claim's machine as the hypervisor is to make it.
func Spec(
	claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate, names Names,
) hypervisor.MachineSpec {
	spec := hypervisor.MachineSpec{
		Owner:    Owner(claim),
		ID:       Ref(claim).ID,
		Hostname: names.Hostname,
		Template: TemplateRef(template),
		Shape:    Shape(template),
		Strategy: hypervisor.Strategy(claim.Spec.Placement),
		Standby:  claim.Spec.Standby,
		Network:  networkOptions(claim, template, names),
	}

	if claim.Status.VMRef != nil {
		spec.Node = claim.Status.VMRef.Node
	}

	return spec
}

// Names are a machine's names.
type Names struct {
	Hostname, FQDN string
	// Domain, Search and Servers are the DNS settings that count.
	Domain          string
	Search, Servers []string
}

// NamesOf gives the names of a claim's machine: the claim's name, with its namespace
// before it where that is asked for, and the domain of the template or else of the
// cluster.
func NamesOf(
	claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate,
	cluster *v1alpha1.HypervisorCluster, withNamespace bool,
) Names {
	names := Names{Hostname: claim.Name}
	if withNamespace {
		names.Hostname = claim.Namespace + "-" + claim.Name
	}

	if dns := cluster.Spec.DNS; dns != nil {
		names.Domain, names.Search, names.Servers = dns.Domain, dns.Search, dns.Servers
	}

	if template.Spec.Network != nil && template.Spec.Network.DNS != nil {
		dns := template.Spec.Network.DNS
		if dns.Domain != "" {
			names.Domain = dns.Domain
		}

		if len(dns.Search) > 0 {
			names.Search = dns.Search
		}

		if len(dns.Servers) > 0 {
			names.Servers = dns.Servers
		}
	}

	names.Hostname = hostLabel(names.Hostname)
	names.FQDN = names.Hostname

	if names.Domain != "" {
		names.FQDN = names.Hostname + "." + names.Domain
	}

	return names
}

// maxLabel is the longest label of a DNS name (RFC 1035, section 2.3.4).
const maxLabel = 63

// hostLabel keeps a name within one DNS label. What is cut is the front: a claim's
// random part is at its end.
func hostLabel(name string) string {
	if len(name) <= maxLabel {
		return name
	}

	cut := name[len(name)-maxLabel:]
	for cut != "" && cut[0] == '-' {
		cut = cut[1:]
	}

	return cut
}

func networkOptions(
	claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate, names Names,
) hypervisor.NetworkOptions {
	out := hypervisor.NetworkOptions{Servers: names.Servers, Search: names.Search}
	network := template.Spec.Network

	if pool := network.AddressPool(); pool != nil {
		out.Gateways = texts(pool.Gateway)

		if info := claim.Status.NetworkInfo; info != nil {
			out.Addresses = info.Addresses
		}

		if len(pool.Nameservers) > 0 {
			out.Servers = texts(pool.Nameservers)
		}

		return out
	}

	if network == nil || network.Mode != v1alpha1.NetworkModeStatic || network.Static == nil {
		return out
	}

	out.Addresses = []string{network.Static.IPAddress + "/" + strconv.Itoa(MaskBits(network.Static.Netmask))}

	if network.Static.Gateway != "" {
		out.Gateways = []string{network.Static.Gateway}
	}

	if len(network.Static.DNS) > 0 {
		out.Servers = network.Static.DNS
	}

	return out
}

// Addresses are those that the claim's machine was given of its template's pool. The error
// is of class Configuration: they were written by hand.
func Addresses(claim *v1alpha1.MachineClaim) ([]netip.Prefix, error) {
	if claim.Status.NetworkInfo == nil {
		return nil, nil
	}

	out := make([]netip.Prefix, 0, len(claim.Status.NetworkInfo.Addresses))

	for _, text := range claim.Status.NetworkInfo.Addresses {
		address, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, errclass.New(errclass.Configuration, "AddressInvalid",
				"read status.networkInfo.addresses of claim %s: %q is not an address with its prefix length: delete the claim",
				claim.Name, text)
		}

		out = append(out, address)
	}

	return out, nil
}

func texts[T ~string](in []T) []string {
	out := make([]string, 0, len(in))
	for _, text := range in {
		out = append(out, string(text))
	}

	return out
}

// MaskBits is the prefix length of a netmask written as an address or as a number; -1
// if it is neither.
func MaskBits(mask string) int {
	if bits, err := strconv.Atoi(mask); err == nil && bits >= 0 && bits <= 128 {
		return bits
	}

	addr, err := netip.ParseAddr(mask)
	if err != nil {
		return -1
	}

	bits, ended := 0, false

	for _, b := range addr.AsSlice() {
		for shift := 7; shift >= 0; shift-- {
			switch set := b>>shift&1 == 1; {
			case set && ended:
				return -1
			case set:
				bits++
			default:
				ended = true
			}
		}
	}

	return bits
}
