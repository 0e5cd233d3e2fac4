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
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

// Reasons why a template's pool gives no addresses.
const (
	ReasonPoolInvalid  = "PoolInvalid"
	ReasonPoolsOverlap = "PoolsOverlap"
)

// Registry knows which pool of the address registry each template has. Templates whose pools are the
// same in all that counts for giving addresses, on one network, share one. Make one with
// NewRegistry.
type Registry struct {
	addresses *pools.AddressRegistry

	mu        sync.Mutex
	templates map[types.NamespacedName]Entry
}

// Entry is a template's pool.
type Entry struct {
	// Network and Pool are keys in the address registry.
	Network, Pool string
	// Machines is how many machines the pool has addresses for.
	Machines uint64
	// Reason and Message tell why it gives none; Reason is empty where it does.
	Reason, Message string
}

// NewRegistry makes a registry without templates.
func NewRegistry(addresses *pools.AddressRegistry) *Registry {
	return &Registry{addresses: addresses, templates: map[types.NamespacedName]Entry{}}
}

// Of is a template's pool; false where it has none, or was not looked at yet.
func (r *Registry) Of(template types.NamespacedName) (Entry, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()

	entry, there := r.templates[template]

	return entry, there
}

// Sharers are the templates that have a pool, in order.
func (r *Registry) Sharers(pool string) []types.NamespacedName {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.sharers(pool)
}

func (r *Registry) sharers(pool string) []types.NamespacedName {
	var out []types.NamespacedName

	for name, entry := range r.templates {
		if entry.Pool == pool {
			out = append(out, name)
		}
	}

	slices.SortFunc(out, func(x, y types.NamespacedName) int { return strings.Compare(x.String(), y.String()) })

	return out
}

// Remove forgets a template. Its pool goes with the last one that has it; addresses in use
// stay with their owners.
func (r *Registry) Remove(template types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()

	r.remove(template, "")
}

func (r *Registry) remove(template types.NamespacedName, except string) {
	old, there := r.templates[template]
	delete(r.templates, template)

	if there && old.Pool != "" && old.Pool != except && len(r.sharers(old.Pool)) == 0 {
		r.addresses.RemovePool(old.Pool)
	}
}

// Set puts the pool of a template, which has one, into the address registry. Where it overlaps another
// one, wake is called for all templates that have it when it is worth trying again.
func (r *Registry) Set(
	template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster, wake func(types.NamespacedName) func(),
) Entry {
	r.mu.Lock()
	defer r.mu.Unlock()

	name := client.ObjectKeyFromObject(template)
	has := template.Spec.Network.AddressPool()
	spec := alloc.SpecOf(has.Addresses, has.ExcludedAddresses, has.Gateway, has.PrefixLengthV4, has.PrefixLengthV6)
	entry := Entry{Network: NetworkOf(template, cluster)}
	entry.Pool = poolName(entry.Network, spec)

	r.remove(name, entry.Pool)

	defer func() { r.templates[name] = entry }()

	if entry.Network == "" {
		entry.Pool, entry.Reason = "", ReasonPoolInvalid
		entry.Message = "network.static.pool is for a network of Multus, and these machines are on the pod network: " +
			"name a NetworkAttachmentDefinition in template.kubevirt.network, or in kubevirt.network of the HypervisorCluster"

		return entry
	}

	pool, err := alloc.NewPool(entry.Pool, spec)
	if err != nil {
		entry.Reason, entry.Message = ReasonPoolInvalid, fmt.Sprintf("read network.static.pool: %v", err)

		return entry
	}

	entry.Machines = pool.Machines()

	if status, there := r.addresses.Status(entry.Pool); there && status.Network == entry.Network {
		return entry // its name says all that there is to say of it
	}

	err = r.addresses.SetPool(pools.Pool{Network: entry.Network, Addresses: pool}, all(append(r.sharers(entry.Pool), name), wake))

	var overlap *alloc.OverlapError

	switch {
	case errors.As(err, &overlap):
		entry.Reason, entry.Message = ReasonPoolsOverlap, r.overlaps(overlap)
	case err != nil:
		entry.Reason, entry.Message = ReasonPoolInvalid, err.Error()
	}

	return entry
}

// all wakes templates.
func all(names []types.NamespacedName, wake func(types.NamespacedName) func()) func() {
	if wake == nil {
		return nil
	}

	return func() {
		for _, name := range names {
			wake(name)()
		}
	}
}

// overlaps names what a pool overlaps as users know it.
func (r *Registry) overlaps(overlap *alloc.OverlapError) string {
	owner, fix := r.owner(overlap.Other), ", or write the same pool in all these templates to share it"
	if owner == "" {
		owner, fix = "KubevirtNodePool "+overlap.Other, ", or exclude these in one of them"
	}

	return fmt.Sprintf("network.static.pool overlaps that of %s on network %s at %s: give each pool addresses of its own%s",
		owner, overlap.Network, overlap.Range, fix)
}

// Owner says whose a pool of the address registry is: the templates that have it, by kind and name.
// It is empty for a pool of no template.
func (r *Registry) Owner(pool string) string {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.owner(pool)
}

func (r *Registry) owner(pool string) string {
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

// NetworkOf is the key of the network that a template's machines are on.
//
// On KubeVirt it is the NetworkAttachmentDefinition as NAMESPACE/NAME, as for
// KubevirtNodePools, because on one network there is one address registry; on a cluster that a
// kubeconfig leads to it is CLUSTER:NAMESPACE/NAME. On Proxmox VE it is CLUSTER:BRIDGE,
// with /vlanN after it if there is a VLAN. It is empty for the pod network of KubeVirt,
// which has addresses of its own.
func NetworkOf(template *v1alpha1.HypervisorMachineTemplate, cluster *v1alpha1.HypervisorCluster) string {
	if source := template.Spec.Template.KubeVirt; source != nil {
		return definitionOf(source, cluster)
	}

	bridge, vlan := cluster.Spec.DefaultNetwork, ""

	if network := template.Spec.Network; network != nil {
		bridge = cmp.Or(network.Bridge, bridge)
		if network.VLAN != nil {
			vlan = fmt.Sprintf("/vlan%d", *network.VLAN)
		}
	}

	return cluster.Name + ":" + bridge + vlan
}

// definitionOf is the NetworkAttachmentDefinition of machines on KubeVirt.
func definitionOf(source *v1alpha1.KubeVirtTemplate, cluster *v1alpha1.HypervisorCluster) string {
	kubevirt := cluster.Spec.KubeVirt
	if kubevirt == nil {
		kubevirt = &v1alpha1.KubeVirtCluster{} // the cluster is another provider's: the template's own pass says so
	}

	definition := cmp.Or(source.Network, kubevirt.Network)

	switch {
	case definition == "":
		return ""
	case !strings.Contains(definition, "/"):
		definition = kubevirt.Namespace + "/" + definition // as Multus has it
	}

	if kubevirt.KubeconfigSecretRef != nil {
		return cluster.Name + ":" + definition
	}

	return definition
}

// poolName is the same for two pools only if all is the same that counts for addresses. It
// begins so that people know it, and is no KubevirtNodePool's.
func poolName(network string, spec alloc.Spec) string {
	const enough = 5

	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q %q %d %d", network,
		spec.Addresses, spec.Excluded, spec.Gateways, spec.PrefixLengthV4, spec.PrefixLengthV6))

	return "machines/" + spec.Addresses[0] + "/" + hex.EncodeToString(sum[:enough])
}
