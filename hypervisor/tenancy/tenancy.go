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

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Reasons of errors, for conditions.
const (
	ReasonNamespace = "NamespaceNotAllowed"
	ReasonTemplate  = "TemplateNotAllowed"
	ReasonStorage   = "StorageNotAllowed"
	ReasonNetwork   = "NetworkNotAllowed"
	ReasonVLAN      = "VLANNotAllowed"
	ReasonAddress   = "AddressNotAllowed"
	ReasonDomain    = "DomainNotAllowed"
	ReasonQuota     = "QuotaExceeded"
)

// Labels gives the labels of a namespace. It is asked only where an entry goes by labels.
type Labels func() (map[string]string, error)

// LabelsOf reads them from the API server.
func LabelsOf(ctx context.Context, live client.Reader, namespace string) Labels {
	return func() (map[string]string, error) {
		var found corev1.Namespace
		if err := live.Get(ctx, client.ObjectKey{Name: namespace}, &found); err != nil {
			return nil, fmt.Errorf("get namespace %s, which an entry of allowedNamespaces picks by labels: %w", namespace, err)
		}

		return found.Labels, nil
	}
}

// Find gives the entry that counts for a namespace; nil where all may do anything. The error
// is of class Configuration where no entry lets the namespace in, or that of namespaceLabels.
func Find(cluster *v1alpha1.HypervisorCluster, namespace string, namespaceLabels Labels) (*v1alpha1.NamespaceAccess, error) {
	if len(cluster.Spec.AllowedNamespaces) == 0 {
		return nil, nil //nolint:nilnil // no limits is an answer
	}

	for i := range cluster.Spec.AllowedNamespaces {
		entry := &cluster.Spec.AllowedNamespaces[i]
		if slices.Contains(entry.Names, namespace) {
			return entry, nil
		}

		if entry.Selector == nil {
			continue
		}

		own, err := namespaceLabels()
		if err != nil {
			return nil, err
		}

		if labels.SelectorFromSet(entry.Selector.MatchLabels).Matches(labels.Set(own)) {
			return entry, nil
		}
	}

	return nil, errclass.New(
		errclass.Configuration,
		ReasonNamespace,
		"make machines on HypervisorCluster %s: namespace %s is not in its spec.allowedNamespaces: ask whoever administers the cluster",
		cluster.Name,
		namespace,
	)
}

// Check makes sure that a template names nothing beyond an entry, which may be nil. The error
// is of class Configuration.
func Check(
	entry *v1alpha1.NamespaceAccess,
	cluster *v1alpha1.HypervisorCluster,
	template *v1alpha1.HypervisorMachineTemplate,
) error {
	if entry == nil {
		return nil
	}

	spec := &template.Spec
	refused := func(reason, what, name string, allowed any) error {
		return errclass.New(
			errclass.Configuration,
			reason,
			"make machines on HypervisorCluster %s: namespace %s may not use %s %s, but %v",
			cluster.Name,
			template.Namespace,
			what,
			name,
			allowed,
		)
	}

	if source := sourceOf(spec, cluster); entry.Templates != nil && !slices.Contains(entry.Templates, source) {
		return refused(ReasonTemplate, "template", source, entry.Templates)
	}

	for _, storage := range storagesOf(spec) {
		if entry.Storages != nil && !slices.Contains(entry.Storages, storage) && !slices.Contains(defaultStorages(cluster), storage) {
			return refused(ReasonStorage, "storage", storage, entry.Storages)
		}
	}

	network, usual := networkOf(spec, cluster)
	if entry.Networks != nil && network != "" && network != usual && !slices.Contains(entry.Networks, network) {
		return refused(ReasonNetwork, "network", network, entry.Networks)
	}

	if own := spec.Network; entry.VLANs != nil && own != nil && own.VLAN != nil && !inVLANs(entry.VLANs, *own.VLAN) {
		return refused(ReasonVLAN, "VLAN", strconv.Itoa(int(*own.VLAN)), vlans(entry.VLANs))
	}

	if domain := domainOf(spec, cluster); domain != "" && !inDomains(entry, domain) {
		return refused(ReasonDomain, "domain", domain, entry.Domains)
	}

	return checkAddresses(entry, spec.Network, refused)
}

// CheckName makes sure that a machine of a namespace may have its name in DNS, by an entry that
// may be nil. The error is of class Configuration.
func CheckName(entry *v1alpha1.NamespaceAccess, cluster, namespace, fqdn string) error {
	_, domain, _ := strings.Cut(fqdn, ".")
	if entry == nil || inDomains(entry, domain) {
		return nil
	}

	return errclass.New(errclass.Configuration, ReasonDomain,
		"register %s by HypervisorCluster %s: machines of namespace %s may have names in %v alone: set dns.domain to one of them",
		fqdn, cluster, namespace, entry.Domains)
}

// domainOf is the domain of a template's machines: its own, or the cluster's.
func domainOf(spec *v1alpha1.HypervisorMachineTemplateSpec, cluster *v1alpha1.HypervisorCluster) string {
	if own := spec.Network; own != nil && own.DNS != nil && own.DNS.Domain != "" {
		return own.DNS.Domain
	}

	if cluster.Spec.DNS == nil {
		return ""
	}

	return cluster.Spec.DNS.Domain
}

// inDomains says whether a domain is one of an entry's, or below one.
func inDomains(entry *v1alpha1.NamespaceAccess, domain string) bool {
	dotted := "." + strings.ToLower(strings.TrimSuffix(domain, "."))

	return entry.Domains == nil || slices.ContainsFunc(entry.Domains, func(allowed string) bool {
		return strings.HasSuffix(dotted, "."+strings.ToLower(allowed))
	})
}

// Taken is what machines take together.
type Taken struct {
	Machines int64
	CPU      int64
	// Memory in bytes.
	Memory int64
}

// Add adds one machine.
func (t *Taken) Add(machine v1alpha1.PlacedResources) {
	t.Machines++
	t.CPU += int64(machine.CPU)
	t.Memory += machine.Memory.Value()
}

// CheckQuota makes sure that what a namespace takes, the new machine included, is within an
// entry's quota. The error is of class Resource: it is waited for.
func CheckQuota(entry *v1alpha1.NamespaceAccess, cluster, namespace string, taken Taken) error {
	if entry == nil || entry.Quota == nil {
		return nil
	}

	over := func(what string, limit, have any) error {
		return errclass.New(errclass.Resource, ReasonQuota,
			"make a machine on HypervisorCluster %s: namespace %s may have %v %s there, and would have %v: it waits for a machine to go",
			cluster, namespace, limit, what, have)
	}

	switch quota := entry.Quota; {
	case quota.Machines != nil && taken.Machines > int64(*quota.Machines):
		return over("machines", *quota.Machines, taken.Machines)
	case quota.CPU != nil && taken.CPU > int64(*quota.CPU):
		return over("cores", *quota.CPU, taken.CPU)
	case quota.Memory != nil && taken.Memory > quota.Memory.Value():
		return over("of memory", quota.Memory.String(), fmt.Sprintf("%d bytes", taken.Memory))
	}

	return nil
}

// sourceOf is what a template's machines are made from, as entries name it.
func sourceOf(spec *v1alpha1.HypervisorMachineTemplateSpec, cluster *v1alpha1.HypervisorCluster) string {
	if source := spec.Template.Proxmox; source != nil {
		if source.TemplateID != nil {
			return strconv.Itoa(int(*source.TemplateID))
		}

		return source.TemplateName
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
			return cmp.Or(object.Namespace, machinesOf(cluster)) + "/" + object.Name
		}
	}

	return ""
}

// machinesOf is the namespace of a cluster's machines on KubeVirt.
func machinesOf(cluster *v1alpha1.HypervisorCluster) string {
	if cluster.Spec.KubeVirt == nil {
		return ""
	}

	return cluster.Spec.KubeVirt.Namespace
}

func storagesOf(spec *v1alpha1.HypervisorMachineTemplateSpec) []string {
	var named []string
	if source := spec.Template.Proxmox; source != nil {
		named = []string{source.Storage, source.SnippetsStorage}
	}

	if source := spec.Template.KubeVirt; source != nil {
		named = []string{source.StorageClassName}
	}

	return slices.DeleteFunc(named, func(name string) bool { return name == "" })
}

func defaultStorages(cluster *v1alpha1.HypervisorCluster) []string {
	if cluster.Spec.KubeVirt != nil {
		return []string{cluster.Spec.KubeVirt.StorageClassName}
	}

	return []string{cluster.Spec.DefaultStorage}
}

// networkOf is the network that a template names, and the cluster's default. On KubeVirt both
// are written with their namespace.
func networkOf(spec *v1alpha1.HypervisorMachineTemplateSpec, cluster *v1alpha1.HypervisorCluster) (network, usual string) {
	if source := spec.Template.KubeVirt; source != nil {
		full := func(name string) string {
			if name == "" || strings.Contains(name, "/") {
				return name
			}

			return machinesOf(cluster) + "/" + name
		}

		if cluster.Spec.KubeVirt != nil {
			usual = full(cluster.Spec.KubeVirt.Network)
		}

		return full(source.Network), usual
	}

	if spec.Network == nil {
		return "", cluster.Spec.DefaultNetwork
	}

	return spec.Network.Bridge, cluster.Spec.DefaultNetwork
}

func inVLANs(ranges []v1alpha1.VLANRange, vlan int32) bool {
	return slices.ContainsFunc(ranges, func(r v1alpha1.VLANRange) bool { return r.Min <= vlan && vlan <= r.Max })
}

func vlans(ranges []v1alpha1.VLANRange) []string {
	out := make([]string, 0, len(ranges))
	for _, r := range ranges {
		out = append(out, fmt.Sprintf("%d-%d", r.Min, r.Max))
	}

	return out
}

func checkAddresses(
	entry *v1alpha1.NamespaceAccess, network *v1alpha1.MachineNetwork, refused func(reason, what, name string, allowed any) error,
) error {
	if entry.Addresses == nil || network == nil || network.Static == nil {
		return nil
	}

	var named []string
	if address := network.Static.IPAddress; address != "" {
		named = append(named, address+"-"+address)
	}

	if pool := network.Static.Pool; pool != nil {
		for _, text := range pool.Addresses {
			named = append(named, string(text))
		}
	}

	for _, text := range named {
		within := slices.ContainsFunc(entry.Addresses, func(allowed string) bool {
			return contains(allowed, text)
		})
		if !within {
			return refused(ReasonAddress, "addresses", text, entry.Addresses)
		}
	}

	return nil
}

// contains says whether all addresses of the second are in the first, both written as
// v1alpha1.AddressRange is.
func contains(outer, inner string) bool {
	from, to, ok := ends(outer)
	first, last, ok2 := ends(inner)

	return ok && ok2 && from.BitLen() == first.BitLen() && from.Compare(first) <= 0 && last.Compare(to) <= 0
}

// ends are the first and last address of a CIDR or of a range.
func ends(text string) (first, last netip.Addr, ok bool) {
	if prefix, err := netip.ParsePrefix(strings.TrimSpace(text)); err == nil {
		bytes := prefix.Masked().Addr().AsSlice()
		for bit := prefix.Bits(); bit < len(bytes)*8; bit++ {
			bytes[bit/8] |= 1 << (7 - bit%8)
		}

		last, ok = netip.AddrFromSlice(bytes)

		return prefix.Masked().Addr(), last, ok
	}

	from, to, ok := strings.Cut(text, "-")
	if !ok {
		return netip.Addr{}, netip.Addr{}, false
	}

	first, err := netip.ParseAddr(strings.TrimSpace(from))
	last, err2 := netip.ParseAddr(strings.TrimSpace(to))

	return first.Unmap(), last.Unmap(), err == nil && err2 == nil && first.Compare(last) <= 0
}
