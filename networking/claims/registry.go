// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// Reasons why no addresses can be allocated from a template's pool.
const (
	ReasonPoolInvalid  = "PoolInvalid"
	ReasonPoolsOverlap = "PoolsOverlap"
)

// TemplateRegistry records which pool of the address registry each template has. Templates share a pool if
// they are on the same network and their pools have the same addresses, exclusions, gateways and prefix
// lengths. Create a registry with NewRegistry.
type TemplateRegistry struct {
	addresses *pools.AddressRegistry

	mu        sync.Mutex
	templates map[types.NamespacedName]Entry
}

// Entry describes the pool of a template.
type Entry struct {
	// Network and Pool are the keys in the address registry.
	Network, Pool string
	// MachineCapacity is the number of machines for which the pool has addresses.
	MachineCapacity uint64
	// Reason and Message say why no addresses can be allocated from the pool. Reason is empty if they can.
	Reason, Message string
}

// NewRegistry returns a registry without templates.
func NewRegistry(addresses *pools.AddressRegistry) *TemplateRegistry {
	return &TemplateRegistry{addresses: addresses, templates: map[types.NamespacedName]Entry{}}
}

// EntryOf returns the entry of a template, which names its pool. It returns false if the template has no pool, or
// if it was not reconciled yet.
func (r *TemplateRegistry) EntryOf(template types.NamespacedName) (Entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	entry, found := r.templates[template]

	return entry, found
}

// Sharers returns the templates that share a pool, sorted by name.
func (r *TemplateRegistry) Sharers(pool string) []types.NamespacedName {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.sharers(pool)
}

func (r *TemplateRegistry) sharers(pool string) []types.NamespacedName {
	var out []types.NamespacedName

	for name, entry := range r.templates {
		if entry.Pool == pool {
			out = append(out, name)
		}
	}

	slices.SortFunc(out, func(x, y types.NamespacedName) int { return strings.Compare(x.String(), y.String()) })

	return out
}

// Remove removes a template. It also removes the pool if no other template shares it. Addresses in use stay
// with their owners.
func (r *TemplateRegistry) Remove(template types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.remove(template, "")
}

// remove removes a template. It also removes its pool, unless other templates share the pool, or its name is
// keptPool.
func (r *TemplateRegistry) remove(template types.NamespacedName, keptPool string) {
	old, found := r.templates[template]
	delete(r.templates, template)

	if found && old.Pool != "" && old.Pool != keptPool && len(r.sharers(old.Pool)) == 0 {
		r.addresses.RemovePool(old.Pool)
	}
}

// Set adds the pool of a template to the address registry. The template must have a pool. wake returns the
// function that enqueues a template, or is nil. If the pool overlaps another pool, the address registry calls
// this function for all templates that share the pool when another attempt can succeed.
func (r *TemplateRegistry) Set(
	template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster, wake func(types.NamespacedName) func(),
) Entry {
	r.mu.Lock()
	defer r.mu.Unlock()

	name := client.ObjectKeyFromObject(template)
	field := template.Spec.Network.AddressPool()
	spec := alloc.NewSpec(field.Addresses, field.ExcludedAddresses, field.Gateway, field.PrefixLengthV4, field.PrefixLengthV6)
	entry := Entry{Network: NetworkKey(template, cluster)}
	entry.Pool = poolName(entry.Network, spec)

	r.remove(name, entry.Pool)

	defer func() { r.templates[name] = entry }()

	if entry.Network == "" {
		entry.Pool, entry.Reason = "", ReasonPoolInvalid
		entry.Message = "network.static.pool needs a Multus network, but these machines are on the pod network: " +
			"set a NetworkAttachmentDefinition in template.kubevirt.network, or in kubevirt.network of the HypervisorCluster"

		return entry
	}

	pool, err := alloc.NewPool(entry.Pool, spec)
	if err != nil {
		entry.Reason, entry.Message = ReasonPoolInvalid, fmt.Sprintf("validate network.static.pool: %v", err)

		return entry
	}

	entry.MachineCapacity = pool.MachineCapacity()

	if status, found := r.addresses.Status(entry.Pool); found && status.Network == entry.Network {
		return entry // the name includes a digest of the pool, so this is the same pool
	}

	wakeSharers := newWakeAll(append(r.sharers(entry.Pool), name), wake)
	err = r.addresses.SetPool(pools.Pool{Network: entry.Network, Addresses: pool}, wakeSharers)

	var overlap *alloc.OverlapError

	switch {
	case errors.As(err, &overlap):
		entry.Reason, entry.Message = ReasonPoolsOverlap, r.describeOverlap(overlap)
	case err != nil:
		entry.Reason, entry.Message = ReasonPoolInvalid, err.Error()
	}

	return entry
}

// newWakeAll returns a function that calls wake for each template. It returns nil if wake is nil.
func newWakeAll(names []types.NamespacedName, wake func(types.NamespacedName) func()) func() {
	if wake == nil {
		return nil
	}

	return func() {
		for _, name := range names {
			wake(name)()
		}
	}
}

// describeOverlap returns a message with the other templates or the KubevirtNodePool instead of the name of
// a pool.
func (r *TemplateRegistry) describeOverlap(overlap *alloc.OverlapError) string {
	owner, fix := r.poolOwner(overlap.Other), ", or write the same pool in all these templates to share it"
	if owner == "" {
		owner, fix = "KubevirtNodePool "+overlap.Other, ", or exclude the shared ones from one pool"
	}

	if overlap.OtherNetwork != "" {
		return fmt.Sprintf("network.static.pool overlaps the pool of %s at %s, and networks %s and %s may be one network: "+
			"set network.bridge in all these templates, or use different addresses in each pool",
			owner, overlap.Range, overlap.Network, overlap.OtherNetwork)
	}

	return fmt.Sprintf("network.static.pool overlaps the pool of %s on network %s at %s: use different addresses in each pool%s",
		owner, overlap.Network, overlap.Range, fix)
}

// PoolOwner returns the kind and the names of the templates that have a pool of the address registry. It
// returns an empty text if the pool belongs to no template.
func (r *TemplateRegistry) PoolOwner(pool string) string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.poolOwner(pool)
}

func (r *TemplateRegistry) poolOwner(pool string) string {
	sharers := r.sharers(pool)
	if len(sharers) == 0 {
		return ""
	}

	names := make([]string, 0, len(sharers))
	for _, name := range sharers {
		names = append(names, name.String())
	}

	return kindTemplate + " " + strings.Join(names, ", ")
}

// NetworkKey returns the key of the network to which a template's machines are attached.
//
// On KubeVirt, the key is the NetworkAttachmentDefinition as NAMESPACE/NAME. KubevirtNodePools have the
// same keys, because all machines of a network must share one address registry. For a KubeVirt cluster with
// a kubeconfig, the key is CLUSTER:NAMESPACE/NAME. It is empty for the pod network of KubeVirt, which
// allocates its own addresses.
//
// On other hypervisors, the key is CLUSTER:BRIDGE, with the suffix /vlanN if the machines have a VLAN. The bridge is that
// of the template, of the cluster, or of all libvirt hosts. If the libvirt hosts have a virtual network instead, it takes
// the place of the bridge. If none of these is known, the key has no bridge: Proxmox VE attaches the machines to the bridge
// of its own template, an external provider to whatever it chooses, and each libvirt host to its own network.
// hypervisor.MayBeSameNetwork compares such a key with others.
func NetworkKey(template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster) string {
	if source := template.Spec.Template.KubeVirt; source != nil {
		return networkDefinition(source, cluster)
	}

	bridge, vlan := cluster.Spec.DefaultNetwork, 0

	if network := template.Spec.Network; network != nil {
		bridge = cmp.Or(network.Bridge, bridge)
		if network.VLAN != nil {
			vlan = int(*network.VLAN)
		}
	}

	if libvirt := cluster.Spec.Libvirt; libvirt != nil && bridge == "" {
		bridge = hostNetwork(libvirt.Hosts)
	}

	return hypervisor.NewAddressNetwork(cluster.Name, bridge, vlan)
}

// hostNetwork returns the bridge or network to which libvirt hosts attach the machines of a template without a bridge. It
// returns an empty text if the hosts differ. A host with neither a bridge nor a network counts only if all hosts are like
// it, because nobody else reaches the addresses of its machines.
func hostNetwork(hosts []v1alpha1.LibvirtHost) string {
	var found []string

	for _, host := range hosts {
		switch {
		case host.Bridge != "":
			found = append(found, host.Bridge)
		case host.Network != "":
			found = append(found, hypervisor.VirtualNetworkPrefix+host.Network)
		}
	}

	slices.Sort(found)

	switch found = slices.Compact(found); len(found) {
	case 0:
		return hypervisor.UserModeNetwork
	case 1:
		return found[0]
	default:
		return ""
	}
}

// networkDefinition returns the NetworkAttachmentDefinition of a template's machines on KubeVirt. It
// returns an empty text for the pod network.
func networkDefinition(source *v1alpha1.KubeVirtTemplate, cluster *v1alpha1.HypervisorCluster) string {
	kubevirt := cluster.Spec.KubeVirt
	if kubevirt == nil {
		kubevirt = &v1alpha1.KubeVirtCluster{} // the cluster has another provider, which the template's own reconciler reports
	}

	definition := cmp.Or(source.Network, kubevirt.Network)

	switch {
	case definition == "":
		return ""
	case !strings.Contains(definition, "/"):
		definition = kubevirt.Namespace + "/" + definition // Multus has the same default
	}

	if kubevirt.KubeconfigSecretRef != nil {
		return cluster.Name + ":" + definition
	}

	return definition
}

// poolName returns a name that two pools share only if they have the same network, addresses, exclusions,
// gateways and prefix lengths. The prefix makes the name readable, and keeps it different from the name of
// any KubevirtNodePool's pool.
func poolName(network string, spec alloc.Spec) string {
	const digestLength = 5

	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %d %d", network,
		spec.Addresses, spec.Excluded, spec.Gateways, spec.PrefixLengthV4, spec.PrefixLengthV6))

	return "machines/" + spec.Addresses[0] + "/" + hex.EncodeToString(sum[:digestLength])
}
