// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"crypto/sha256"
	"encoding/base32"
	"net/netip"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// NewTemplateRef returns the reference to the hypervisor template that a HypervisorMachineTemplate uses.
func NewTemplateRef(template *v1alpha1.HypervisorMachineTemplate) hypervisor.TemplateRef {
	if source := template.Spec.Template.KubeVirt; source != nil {
		return newKubeVirtRef(source)
	}

	if source := template.Spec.Template.Libvirt; source != nil {
		return newLibvirtRef(source)
	}

	if source := template.Spec.Template.External; source != nil {
		return hypervisor.TemplateRef{Name: source.Name}
	}

	source := template.Spec.Template.Proxmox
	if source == nil {
		return hypervisor.TemplateRef{}
	}

	ref := hypervisor.TemplateRef{
		Name: source.TemplateName, Tags: strings.Join(source.TemplateTags, ","), Newest: source.Newest,
	}
	if source.TemplateID != nil {
		ref.ID = int(*source.TemplateID)
	}

	return ref
}

// NewSourceRef returns the reference to the hypervisor template that machines are cloned from. If the
// template is selected by tags, this is the one in its status, which has been validated.
func NewSourceRef(template *v1alpha1.HypervisorMachineTemplate) hypervisor.TemplateRef {
	ref := NewTemplateRef(template)
	if name := template.SelectedSource(); name != "" {
		ref.Name, ref.Newest = name, false
	}

	return ref
}

func newKubeVirtRef(source *v1alpha1.KubeVirtTemplate) hypervisor.TemplateRef {
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

func newLibvirtRef(source *v1alpha1.LibvirtTemplate) hypervisor.TemplateRef {
	switch {
	case source.Volume != "":
		return hypervisor.TemplateRef{Kind: hypervisor.TemplateStorageVolume, Name: source.Volume}
	case source.Domain != "":
		return hypervisor.TemplateRef{Kind: hypervisor.TemplateDomain, Name: source.Domain}
	default:
		return hypervisor.TemplateRef{Kind: hypervisor.TemplateTaggedDomain, Name: strings.Join(source.Tags, ",")}
	}
}

// CheckProvider returns an error of class Configuration if the template has no settings for the provider of
// the cluster.
func CheckProvider(template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster) error {
	source := &template.Spec.Template

	fits := map[string]bool{
		v1alpha1.ProviderProxmox: source.Proxmox != nil, v1alpha1.ProviderKubeVirt: source.KubeVirt != nil,
		v1alpha1.ProviderLibvirt: source.Libvirt != nil, v1alpha1.ProviderExternal: source.External != nil,
	}
	if fits[cluster.Spec.Provider] {
		return nil
	}

	return errclass.New(errclass.Configuration, "ProviderMismatch",
		"HypervisorCluster %s has provider %s: set spec.template.%[2]s, or refer to another cluster in spec.hypervisorClusterRef",
		cluster.Name, cluster.Spec.Provider)
}

// NewShape returns the resources, the network and the storage of machines that are created from the template.
func NewShape(template *v1alpha1.HypervisorMachineTemplate) hypervisor.Shape {
	spec := &template.Spec
	shape := hypervisor.Shape{
		CPU:             int(spec.Resources.CPU),
		Memory:          spec.Resources.Memory.Value(),
		CloudInitSource: hypervisor.SourceNoCloud,
		Linked:          true,
		TPM:             HasTPM(template),
		Nested:          spec.Resources.NestedVirtualization,
		Devices:         newDevices(spec.Resources.Devices),
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

	if source := spec.Template.Libvirt; source != nil {
		shape.Linked = source.LinkedClone == nil || *source.LinkedClone
	}

	if source := spec.Template.External; source != nil {
		shape.Linked = source.LinkedClone == nil || *source.LinkedClone
		shape.Storage = source.Storage
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

func newDevices(devices []v1alpha1.MachineDevice) []hypervisor.Device {
	var out []hypervisor.Device

	for _, d := range devices {
		out = append(out, hypervisor.Device{
			Name: d.Name, Count: int(max(d.Count, v1alpha1.DefaultDeviceCount)), GPU: d.Type == v1alpha1.DeviceGPU,
		})
	}

	return out
}

// Names holds the host name of a machine and its DNS settings.
type Names struct {
	Hostname, FQDN string
	// Domain, SearchDomains and DNSServers are the effective DNS settings.
	Domain                    string
	SearchDomains, DNSServers []string
}

// NewNames returns the names of a claim's machine. The host name is the claim's name, prefixed with the
// namespace if hasNamespace is true. Each DNS setting of the template overrides that of the cluster.
func NewNames(
	claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate,
	cluster *v1alpha1.HypervisorCluster, hasNamespace bool,
) Names {
	names := Names{Hostname: claim.Name}
	if hasNamespace {
		names.Hostname = claim.Namespace + "-" + claim.Name
	}

	if dns := cluster.Spec.DNS; dns != nil {
		names.Domain, names.SearchDomains, names.DNSServers = dns.Domain, dns.Search, dns.Servers
	}

	if template.Spec.Network != nil && template.Spec.Network.DNS != nil {
		dns := template.Spec.Network.DNS
		if dns.Domain != "" {
			names.Domain = dns.Domain
		}

		if len(dns.Search) > 0 {
			names.SearchDomains = dns.Search
		}

		if len(dns.Servers) > 0 {
			names.DNSServers = dns.Servers
		}
	}

	if template.IsWindows() {
		names.Hostname = shortenHostname(names.Hostname, claim)
	}

	names.Hostname = truncateHostname(names.Hostname)
	names.FQDN = names.Hostname

	if names.Domain != "" {
		names.FQDN = names.Hostname + "." + names.Domain
	}

	return names
}

// maxLabelLength is the length of the longest label of a DNS name (RFC 1035, section 2.3.4).
const maxLabelLength = 63

// Limits of a computer name of Windows (NetBIOS).
const (
	maxComputerName = 15
	// digestLength is the length of the digest in a shortened name: 2^40 values.
	digestLength = 8
)

// shortenHostname returns a name that Windows accepts. A name that is too long, or has only digits, is replaced by its
// beginning and a digest of the claim, so that two machines never share a name.
func shortenHostname(name string, claim *v1alpha1.MachineClaim) string {
	if len(name) <= maxComputerName && strings.Trim(name, "0123456789") != "" {
		return name
	}

	sum := sha256.Sum256([]byte(claim.Namespace + "/" + claim.Name + "/" + string(claim.UID)))
	digest := strings.ToLower(base32.HexEncoding.EncodeToString(sum[:]))[:digestLength]
	prefix := strings.TrimRight(name[:min(len(name), maxComputerName-digestLength-1)], "-.")

	return prefix + "-" + digest
}

// truncateHostname truncates a name to the length of a DNS label. It removes characters from the front,
// because the random suffix of a claim's name must stay.
func truncateHostname(name string) string {
	if len(name) <= maxLabelLength {
		return name
	}

	cut := name[len(name)-maxLabelLength:]
	for cut != "" && cut[0] == '-' {
		cut = cut[1:]
	}

	return cut
}

// NewNetworkOptions returns the addresses, gateways and name servers of the machine. An address pool takes
// precedence over a static address, and the name servers of either take precedence over names.DNSServers.
func NewNetworkOptions(
	claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate, names Names,
) hypervisor.NetworkOptions {
	out := hypervisor.NetworkOptions{DNSServers: names.DNSServers, SearchDomains: names.SearchDomains}
	network := template.Spec.Network

	if pool := network.AddressPool(); pool != nil {
		out.Gateways = toStrings(pool.Gateway)

		if info := claim.Status.NetworkInfo; info != nil {
			out.Addresses, out.AddressNetwork = info.Addresses, info.AddressNetwork
		}

		if len(pool.Nameservers) > 0 {
			out.DNSServers = toStrings(pool.Nameservers)
		}

		return out
	}

	if network == nil || network.Mode != v1alpha1.NetworkModeStatic || network.Static == nil {
		return out
	}

	out.Addresses = []string{network.Static.IPAddress + "/" + strconv.Itoa(ParseNetmask(network.Static.Netmask))}

	if network.Static.Gateway != "" {
		out.Gateways = []string{network.Static.Gateway}
	}

	if len(network.Static.DNS) > 0 {
		out.DNSServers = network.Static.DNS
	}

	return out
}

// ParseAddresses returns the addresses that the claim's machine was allocated from the pool of its
// template. An address that cannot be parsed was written by hand, so the error is of class Configuration.
func ParseAddresses(claim *v1alpha1.MachineClaim) ([]netip.Prefix, error) {
	if claim.Status.NetworkInfo == nil {
		return nil, nil
	}

	out := make([]netip.Prefix, 0, len(claim.Status.NetworkInfo.Addresses))

	for _, text := range claim.Status.NetworkInfo.Addresses {
		address, err := netip.ParsePrefix(text)
		if err != nil {
			return nil, errclass.New(errclass.Configuration, "AddressInvalid",
				"parse status.networkInfo.addresses of claim %s: %q is not an address with a prefix length: delete the claim",
				claim.Name, text)
		}

		out = append(out, address)
	}

	return out, nil
}

func toStrings[T ~string](in []T) []string {
	out := make([]string, 0, len(in))
	for _, text := range in {
		out = append(out, string(text))
	}

	return out
}

// ParseNetmask returns the prefix length of a netmask, which is written as an address or as a prefix
// length. It returns -1 if the mask is neither.
func ParseNetmask(mask string) int {
	if bits, err := strconv.Atoi(mask); err == nil && bits >= 0 && bits <= 128 {
		return bits
	}

	addr, err := netip.ParseAddr(mask)
	if err != nil {
		return -1
	}

	bits, hasEnded := 0, false

	for _, b := range addr.AsSlice() {
		for shift := 7; shift >= 0; shift-- {
			switch isSet := b>>shift&1 == 1; {
			case isSet && hasEnded:
				return -1
			case isSet:
				bits++
			default:
				hasEnded = true
			}
		}
	}

	return bits
}
