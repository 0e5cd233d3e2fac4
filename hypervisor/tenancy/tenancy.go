// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tenancy

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"go4.org/netipx"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Reasons of the errors of this package. Conditions show them.
const (
	ReasonNamespace = "NamespaceNotAllowed"
	ReasonTemplate  = "TemplateNotAllowed"
	ReasonStorage   = "StorageNotAllowed"
	ReasonNetwork   = "NetworkNotAllowed"
	ReasonVLAN      = "VLANNotAllowed"
	ReasonAddress   = "AddressNotAllowed"
	ReasonDomain    = "DomainNotAllowed"
	ReasonDevice    = "DeviceNotAllowed"
	ReasonQuota     = "QuotaExceeded"
)

// LabelsFunc returns the labels of a namespace. FindEntry calls it only if an entry selects
// namespaces by labels.
type LabelsFunc func() (map[string]string, error)

// NewLabelsFunc returns a function that reads the labels of the namespace from the API server.
func NewLabelsFunc(ctx context.Context, live client.Reader, namespace string) LabelsFunc {
	return func() (map[string]string, error) {
		var found corev1.Namespace
		if err := live.Get(ctx, client.ObjectKey{Name: namespace}, &found); err != nil {
			return nil, fmt.Errorf("get Namespace %s to compare its labels with spec.allowedNamespaces: %w", namespace, err)
		}

		return found.Labels, nil
	}
}

// FindEntry returns the first entry of spec.allowedNamespaces that matches the namespace. It
// returns nil without an error if the cluster has no entries, because then each namespace is
// allowed to use everything. If no entry matches, the error is of class Configuration. FindEntry
// also returns the error of namespaceLabels.
func FindEntry(
	cluster *v1alpha1.HypervisorCluster, namespace string, namespaceLabels LabelsFunc,
) (*v1alpha1.NamespaceAccess, error) {
	if len(cluster.Spec.AllowedNamespaces) == 0 {
		return nil, nil //nolint:nilnil // a nil entry means that the cluster has no limits
	}

	for i := range cluster.Spec.AllowedNamespaces {
		entry := &cluster.Spec.AllowedNamespaces[i]
		if slices.Contains(entry.Names, namespace) {
			return entry, nil
		}

		if entry.Selector == nil {
			continue
		}

		nsLabels, err := namespaceLabels()
		if err != nil {
			return nil, err
		}

		if labels.SelectorFromSet(entry.Selector.MatchLabels).Matches(labels.Set(nsLabels)) {
			return entry, nil
		}
	}

	return nil, errclass.New(
		errclass.Configuration,
		ReasonNamespace,
		"create machines on HypervisorCluster %s: no entry of its spec.allowedNamespaces matches namespace %s: "+
			"ask the administrator of the cluster to add the namespace",
		cluster.Name,
		namespace,
	)
}

// CheckTemplate returns an error of class Configuration if the entry does not allow something that
// the template names or that its machines would get: its template, storages, network, VLAN, devices, DNS domain
// or addresses. A nil entry allows everything.
func CheckTemplate(
	entry *v1alpha1.NamespaceAccess,
	cluster *v1alpha1.HypervisorCluster,
	template *v1alpha1.HypervisorMachineTemplate,
) error {
	if entry == nil {
		return nil
	}

	spec := &template.Spec
	newError := func(reason, resource, name string, allowed ...string) error {
		return errclass.New(
			errclass.Configuration,
			reason,
			"create machines on HypervisorCluster %s: namespace %s is not allowed to use %s %s: "+
				"its entry of spec.allowedNamespaces allows only %s",
			cluster.Name,
			template.Namespace,
			resource,
			name,
			strings.Join(allowed, ", "),
		)
	}

	if source := templateSource(spec, cluster); entry.Templates != nil && !slices.Contains(entry.Templates, source) {
		return newError(ReasonTemplate, "template", source, entry.Templates...)
	}

	for _, storage := range templateStorages(spec) {
		if entry.Storages != nil && !slices.Contains(entry.Storages, storage) && !slices.Contains(defaultStorages(cluster), storage) {
			return newError(ReasonStorage, "storage", storage, entry.Storages...)
		}
	}

	if err := checkNetworks(entry, cluster, template, newError); err != nil {
		return err
	}

	for _, device := range spec.Resources.Devices {
		if entry.Devices != nil && !slices.Contains(entry.Devices, device.Name) {
			return newError(ReasonDevice, "device", device.Name, entry.Devices...)
		}
	}

	if domain := dnsDomain(spec, cluster); domain != "" && !isDomainAllowed(entry, domain) {
		return newError(ReasonDomain, "domain", domain, entry.Domains...)
	}

	return checkAddresses(entry, spec.Network, newError)
}

// CheckDNSName returns an error of class Configuration if the entry does not allow a machine of the
// namespace to have the DNS name. A nil entry allows every name.
func CheckDNSName(entry *v1alpha1.NamespaceAccess, cluster, namespace, fqdn string) error {
	_, domain, _ := strings.Cut(fqdn, ".")
	if entry == nil || isDomainAllowed(entry, domain) {
		return nil
	}

	return errclass.New(errclass.Configuration, ReasonDomain,
		"register DNS name %s with HypervisorCluster %s: its spec.allowedNamespaces allows namespace %s only names in %s: "+
			"set dns.domain to one of these domains",
		fqdn, cluster, namespace, strings.Join(entry.Domains, ", "))
}

// dnsDomain returns the DNS domain of a template's machines. This is the template's domain, or the
// cluster's if the template has none.
func dnsDomain(spec *v1alpha1.HypervisorMachineTemplateSpec, cluster *v1alpha1.HypervisorCluster) string {
	if n := spec.Network; n != nil && n.DNS != nil && n.DNS.Domain != "" {
		return n.DNS.Domain
	}

	if cluster.Spec.DNS == nil {
		return ""
	}

	return cluster.Spec.DNS.Domain
}

// isDomainAllowed reports whether the domain is one of the entry's domains or a subdomain of one. An
// entry without domains allows every domain.
func isDomainAllowed(entry *v1alpha1.NamespaceAccess, domain string) bool {
	dotted := "." + strings.ToLower(strings.TrimSuffix(domain, "."))

	return entry.Domains == nil || slices.ContainsFunc(entry.Domains, func(allowed string) bool {
		return strings.HasSuffix(dotted, "."+strings.ToLower(allowed))
	})
}

// Usage is the sum of the resources of several machines.
type Usage struct {
	Machines int64
	CPU      int64
	// Memory in bytes.
	Memory int64
}

// Add adds the resources of one machine.
func (u *Usage) Add(machine v1alpha1.PlacedResources) {
	u.Machines++
	u.CPU += int64(machine.CPU)
	u.Memory += machine.Memory.Value()
}

// CheckQuota returns an error of class Resource if the usage of the namespace, including the new
// machine, exceeds the entry's quota. The claim then waits until other machines are deleted.
func CheckQuota(entry *v1alpha1.NamespaceAccess, cluster, namespace string, usage Usage) error {
	if entry == nil || entry.Quota == nil {
		return nil
	}

	newError := func(resource string, limit, required any) error {
		return errclass.New(errclass.Resource, ReasonQuota,
			"create a machine on HypervisorCluster %s: the quota of namespace %s is %v %s, but its machines would use %v: "+
				"the claim waits until another machine of the namespace is deleted",
			cluster, namespace, limit, resource, required)
	}

	switch quota := entry.Quota; {
	case quota.Machines != nil && usage.Machines > int64(*quota.Machines):
		return newError("machines", *quota.Machines, usage.Machines)
	case quota.CPU != nil && usage.CPU > int64(*quota.CPU):
		return newError("cores", *quota.CPU, usage.CPU)
	case quota.Memory != nil && usage.Memory > quota.Memory.Value():
		return newError("of memory", quota.Memory.String(), fmt.Sprintf("%d bytes", usage.Memory))
	}

	return nil
}

// templateSource returns the source that a template's machines are cloned from, in the notation of
// NamespaceAccess.Templates.
func templateSource(spec *v1alpha1.HypervisorMachineTemplateSpec, cluster *v1alpha1.HypervisorCluster) string {
	if source := spec.Template.Proxmox; source != nil {
		if source.TemplateID != nil {
			return strconv.Itoa(int(*source.TemplateID))
		}

		return cmp.Or(source.TemplateName, formatTags(source.TemplateTags))
	}

	if source := spec.Template.Libvirt; source != nil {
		return cmp.Or(source.Volume, source.Domain, formatTags(source.Tags))
	}

	if source := spec.Template.External; source != nil {
		return source.Name
	}

	source := spec.Template.KubeVirt
	if source == nil {
		return ""
	}

	if source.ContainerDisk != nil {
		return source.ContainerDisk.Image
	}

	for _, object := range []*v1alpha1.KubeVirtSource{source.DataSource, source.PersistentVolumeClaim} {
		if object != nil {
			return cmp.Or(object.Namespace, machineNamespace(cluster)) + "/" + object.Name
		}
	}

	return ""
}

// formatTags returns sorted tags in the notation of NamespaceAccess.Templates. The prefix distinguishes tags from names
// and IDs: the permission to use the template with a name is not the permission to use all templates with an equal tag.
func formatTags(tags []string) string {
	return "tags:" + strings.Join(slices.Sorted(slices.Values(tags)), ",")
}

// machineNamespace returns the namespace of a cluster's machines on KubeVirt, or "" for another
// hypervisor.
func machineNamespace(cluster *v1alpha1.HypervisorCluster) string {
	if cluster.Spec.KubeVirt == nil {
		return ""
	}

	return cluster.Spec.KubeVirt.Namespace
}

func templateStorages(spec *v1alpha1.HypervisorMachineTemplateSpec) []string {
	var storages []string
	if source := spec.Template.Proxmox; source != nil {
		storages = []string{source.Storage, source.SnippetsStorage}
	}

	if source := spec.Template.KubeVirt; source != nil {
		storages = []string{source.StorageClassName}
	}

	if source := spec.Template.External; source != nil {
		storages = []string{source.Storage}
	}

	return slices.DeleteFunc(storages, func(name string) bool { return name == "" })
}

func defaultStorages(cluster *v1alpha1.HypervisorCluster) []string {
	if cluster.Spec.KubeVirt != nil {
		return []string{cluster.Spec.KubeVirt.StorageClassName}
	}

	return []string{cluster.Spec.DefaultStorage}
}

// newErrorFunc returns the error for something that the entry does not allow.
type newErrorFunc func(reason, resource, name string, allowed ...string) error

// checkNetworks returns an error for the first network, and then for the VLAN, to which machines of the template would be
// attached, and which the entry does not allow. The cluster's default network is always allowed. Machines on the pod network
// of KubeVirt, and on libvirt hosts with neither a bridge nor a network, are attached to no network that has a name.
func checkNetworks(
	entry *v1alpha1.NamespaceAccess, cluster *v1alpha1.HypervisorCluster, template *v1alpha1.HypervisorMachineTemplate,
	newError newErrorFunc,
) error {
	spec := &template.Spec
	named, defaultNetwork := templateNetwork(spec, cluster)
	isNetworkKnown := cmp.Or(named, defaultNetwork) != "" || spec.Template.KubeVirt != nil || cluster.Spec.Libvirt != nil

	newUnknownError := func(reason, resource string, allowed ...string) error {
		return errclass.New(errclass.Configuration, reason,
			"create machines on HypervisorCluster %s: its spec.allowedNamespaces allows namespace %s only %s %s, and only the "+
				"hypervisor knows the %[3]s of the machines: set network.bridge of the template, or defaultNetwork of the HypervisorCluster",
			cluster.Name, template.Namespace, resource, strings.Join(allowed, ", "))
	}

	switch networks := entry.Networks; {
	case networks == nil:
	case !isNetworkKnown:
		return newUnknownError(ReasonNetwork, "network", networks...)
	case named != "" && named != defaultNetwork && !slices.Contains(networks, named):
		return newError(ReasonNetwork, "network", named, networks...)
	case named == "" && cluster.Spec.Libvirt != nil:
		if host := findForbiddenHost(cluster.Spec.Libvirt.Hosts, networks); host != nil {
			return newError(ReasonNetwork, "network", cmp.Or(host.Bridge, host.Network)+" of host "+host.Name, networks...)
		}
	}

	switch network := spec.Network; {
	case entry.VLANs == nil:
	case network != nil && network.VLAN != nil:
		if !isVLANAllowed(entry.VLANs, *network.VLAN) {
			return newError(ReasonVLAN, "VLAN", strconv.Itoa(int(*network.VLAN)), formatVLANRanges(entry.VLANs)...)
		}
	case spec.Template.Proxmox != nil && !isNetworkKnown: // Proxmox VE keeps the network device of its own template
		return newUnknownError(ReasonVLAN, "VLAN", formatVLANRanges(entry.VLANs)...)
	}

	return nil
}

// findForbiddenHost returns the first host that attaches machines to another network than those. A machine can be placed on
// each host. It returns nil if there is none.
func findForbiddenHost(hosts []v1alpha1.LibvirtHost, networks []string) *v1alpha1.LibvirtHost {
	for i := range hosts {
		if name := cmp.Or(hosts[i].Bridge, hosts[i].Network); name != "" && !slices.Contains(networks, name) {
			return &hosts[i]
		}
	}

	return nil
}

// templateNetwork returns the network that a template names and the cluster's default network. On
// KubeVirt, both include their namespace.
func templateNetwork(
	spec *v1alpha1.HypervisorMachineTemplateSpec, cluster *v1alpha1.HypervisorCluster,
) (network, defaultNetwork string) {
	if source := spec.Template.KubeVirt; source != nil {
		qualify := func(name string) string {
			if name == "" || strings.Contains(name, "/") {
				return name
			}

			return machineNamespace(cluster) + "/" + name
		}

		if cluster.Spec.KubeVirt != nil {
			defaultNetwork = qualify(cluster.Spec.KubeVirt.Network)
		}

		return qualify(source.Network), defaultNetwork
	}

	if spec.Network == nil {
		return "", cluster.Spec.DefaultNetwork
	}

	return spec.Network.Bridge, cluster.Spec.DefaultNetwork
}

func isVLANAllowed(ranges []v1alpha1.VLANRange, vlan int32) bool {
	return slices.ContainsFunc(ranges, func(r v1alpha1.VLANRange) bool { return r.Min <= vlan && vlan <= r.Max })
}

func formatVLANRanges(ranges []v1alpha1.VLANRange) []string {
	out := make([]string, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, fmt.Sprintf("%d-%d", r.Min, r.Max))
	}

	return out
}

// checkAddresses returns an error for the first static address or range of an address pool that lies
// outside of all address ranges of the entry. An entry without address ranges allows all addresses.
func checkAddresses(
	entry *v1alpha1.NamespaceAccess, network *v1alpha1.MachineNetwork, newError newErrorFunc,
) error {
	if entry.Addresses == nil || network == nil || network.Static == nil {
		return nil
	}

	var ranges []string
	if address := network.Static.IPAddress; address != "" {
		ranges = append(ranges, address+"-"+address)
	}

	if pool := network.Static.Pool; pool != nil {
		for _, text := range pool.Addresses {
			ranges = append(ranges, string(text))
		}
	}

	for _, text := range ranges {
		isAllowed := slices.ContainsFunc(entry.Addresses, func(allowed string) bool {
			return containsRange(allowed, text)
		})
		if !isAllowed {
			return newError(ReasonAddress, "addresses", text, entry.Addresses...)
		}
	}

	return nil
}

// containsRange reports whether the outer range contains all addresses of the inner range. Both have
// the format of v1alpha1.AddressRange. It returns false if one of them is not valid.
func containsRange(outer, inner string) bool {
	outerRange, innerRange := parseRange(outer), parseRange(inner)

	return outerRange.Contains(innerRange.From()) && outerRange.Contains(innerRange.To())
}

// parseRange parses a CIDR or a range FIRST-LAST. It returns a range that is not valid, and contains no
// address, if the text is neither, or if the range ends before it starts.
func parseRange(text string) netipx.IPRange {
	if prefix, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
		return netipx.RangeOfPrefix(prefix)
	}

	firstText, lastText, _ := strings.Cut(text, "-")
	first, _ := netip.ParseAddr(strings.TrimSpace(firstText))
	last, _ := netip.ParseAddr(strings.TrimSpace(lastText))

	return netipx.IPRangeFrom(first.Unmap(), last.Unmap())
}
