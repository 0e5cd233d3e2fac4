// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package addresses

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/kit/watch"
	"github.com/hyperfleet/hyperfleet/networking"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/claims"
	"github.com/hyperfleet/hyperfleet/networking/kubevirt"
	"github.com/hyperfleet/hyperfleet/networking/pools"
)

const (
	kindNodePool = "KubevirtNodePool"
	kindTemplate = "HypervisorMachineTemplate"
	kindMachine  = "KubevirtMachine"
	kindClaim    = "MachineClaim"

	// maxRanges is the maximum number of ranges of free addresses that are listed for each address family.
	maxRanges = 20
)

// query selects pools.
type query struct {
	// namespace of the objects that own the pools; if it is empty, the query selects all namespaces.
	namespace string
	// pool is the name of an owner, KIND/NAME or KIND.GROUP/NAME; if it is empty, the query selects all pools.
	pool string
}

// Object identifies the owner of a pool or of an address.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// String returns NAMESPACE/NAME.
func (o Object) String() string { return o.Namespace + "/" + o.Name }

// objectName returns the name of the object as kubectl prints it.
func (o Object) objectName() string {
	group := infrav1.GroupVersion.Group
	if o.Kind == kindTemplate || o.Kind == kindClaim {
		group = hfv1.GroupVersion.Group
	}

	return cli.ObjectName(group, o.Kind, o.Name)
}

// Usage counts the addresses of one family in a pool.
type Usage struct {
	Size uint64 `json:"size"`
	Free uint64 `json:"free"`
}

// Address is an address that is allocated to a machine.
type Address struct {
	Address string `json:"address"`
	// Machine that the address is allocated to.
	Machine Object `json:"machine"`
	// Phase of the machine.
	Phase string `json:"phase,omitempty"`
	// Since is the time at which the address was recorded in the machine's status; null if the machine has no
	// such condition.
	Since *time.Time `json:"since"`
	// IsNoLongerInPool is true if the pool no longer contains the address.
	IsNoLongerInPool bool `json:"outside,omitempty"`
}

// WaitingMachine is a machine that waits for an address.
type WaitingMachine struct {
	Machine Object     `json:"machine"`
	Since   *time.Time `json:"since"`
}

// Pool is a pool of addresses.
type Pool struct {
	// Owners are the objects that the pool belongs to. Templates can share a pool.
	Owners []Object `json:"of"`
	// Network that the addresses belong to.
	Network string `json:"network"`
	IPv4    Usage  `json:"ipv4"`
	IPv6    Usage  `json:"ipv6"`
	// Machines is the number of additional machines that the pool has addresses for.
	Machines uint64 `json:"machines"`
	// Addresses that are in use, in ascending order.
	Addresses []Address `json:"addresses"`
	// Free lists the ranges of free addresses, in the order in which they are allocated, up to maxRanges for
	// each address family. Truncated is true if there may be more ranges.
	Free      []string `json:"free"`
	Truncated bool     `json:"cut,omitempty"`
	// WaitingMachines lists the machines that wait for an address, in the order in which they get one.
	WaitingMachines []WaitingMachine `json:"waiting"`
	// Problem is the reason why the pool allocates no addresses.
	Problem string `json:"problem,omitempty"`
}

// owner is a machine that can hold addresses. condition is its condition about the allocation, or nil.
type owner struct {
	object    Object
	phase     string
	condition *metav1.Condition
}

// readPools returns the pools that the query selects, sorted by network and owner. It returns an error if the
// query names a pool that does not exist.
func readPools(ctx context.Context, reader client.Reader, q query) ([]Pool, error) {
	addresses, registry := networking.NewRegistries(reader)
	if err := addresses.Rebuild(ctx); err != nil {
		return nil, err
	}

	owners, err := listOwners(ctx, reader)
	if err != nil {
		return nil, err
	}

	nodePools, err := watch.ListAll[*infrav1.KubevirtNodePool](ctx, reader, &infrav1.KubevirtNodePoolList{})
	if err != nil {
		return nil, fmt.Errorf("list node pools: %w", err)
	}

	templates, err := watch.ListAll[*hfv1.HypervisorMachineTemplate](ctx, reader, &hfv1.HypervisorMachineTemplateList{})
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}

	out := []Pool{}

	for _, p := range nodePools {
		if p.Spec.BootstrapNetworkConfig != nil {
			pool := describePool(addresses, kubevirt.PoolName(p.Namespace, p.Name), owners)
			pool.Owners = []Object{{kindNodePool, p.Namespace, p.Name}}
			pool.Problem = falseMessage(p.Status.Conditions, infrav1.ConditionValidNetworkConfig)
			out = append(out, pool)
		}
	}

	out = append(out, poolsOfTemplates(addresses, registry, templates, owners)...)
	out = slices.DeleteFunc(out, func(p Pool) bool { return !slices.ContainsFunc(p.Owners, q.matches) })

	if len(out) == 0 && q.pool != "" {
		return nil, fmt.Errorf("found no KubevirtNodePool or HypervisorMachineTemplate %q with static addresses %s: "+
			"run `hyperfleet addresses -A` to list all pools", q.pool, formatScope(q.namespace))
	}

	slices.SortFunc(out, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Owners[0].String(), b.Owners[0].String()))
	})

	return out, nil
}

func formatScope(namespace string) string {
	if namespace == "" {
		return "in any namespace"
	}

	return "in namespace " + namespace
}

// matches reports whether the query selects the pool of the given owner. The kind in the query is
// case-insensitive and may be plural.
func (q query) matches(o Object) bool {
	kind, name, hasKind := strings.Cut(q.pool, "/")
	if !hasKind {
		kind, name = "", q.pool
	}

	return (q.namespace == "" || o.Namespace == q.namespace) && (name == "" || o.Name == name) &&
		(kind == "" || strings.EqualFold(kind, o.Kind) || strings.EqualFold(kind, o.Kind+"s") || q.pool == o.objectName())
}

// falseMessage returns the message of the named condition if the condition is False, and "" otherwise.
func falseMessage(conditions []metav1.Condition, name string) string {
	if condition := meta.FindStatusCondition(conditions, name); condition != nil && condition.Status == metav1.ConditionFalse {
		return condition.Message
	}

	return ""
}

// poolsOfTemplates returns the address pools of templates. A pool that several templates share appears once.
func poolsOfTemplates(
	addresses *pools.AddressRegistry, registry *claims.TemplateRegistry,
	templates []*hfv1.HypervisorMachineTemplate, owners map[string]owner,
) []Pool {
	var out []Pool

	indexes := map[string]int{}

	for _, t := range templates {
		if t.Spec.Network.AddressPool() == nil {
			continue
		}

		object := Object{kindTemplate, t.Namespace, t.Name}
		entry, _ := registry.EntryOf(types.NamespacedName{Namespace: t.Namespace, Name: t.Name})

		if i, ok := indexes[entry.Pool]; ok && entry.Reason == "" {
			out[i].Owners = append(out[i].Owners, object)

			continue
		}

		pool := describePool(addresses, entry.Pool, owners)
		pool.Owners = []Object{object}
		pool.Problem = cmp.Or(entry.Message, falseMessage(t.Status.Conditions, hfv1.ConditionAddressPoolReady))

		if entry.Pool != "" && entry.Reason == "" {
			indexes[entry.Pool] = len(out)
		}

		out = append(out, pool)
	}

	return out
}

// describePool returns the usage of a pool in the address registry. If the registry does not know the pool,
// the result has empty lists and no network.
func describePool(addresses *pools.AddressRegistry, name string, owners map[string]owner) Pool {
	out := Pool{Addresses: []Address{}, Free: []string{}, WaitingMachines: []WaitingMachine{}}

	detail, ok := addresses.Detail(name, maxRanges)
	if !ok {
		return out
	}

	out.Network, out.Machines = detail.Network, detail.CountAllocatable()
	out.IPv4, out.IPv6 = Usage(detail.IPv4), Usage(detail.IPv6)

	for _, assignment := range detail.Assignments {
		machine := findOwner(owners, assignment.Owner)
		out.Addresses = append(out.Addresses, Address{
			Address: assignment.Address.String(), Machine: machine.object, Phase: machine.phase,
			IsNoLongerInPool: detail.IsNoLongerInPool[assignment], Since: conditionSince(machine.condition, metav1.ConditionTrue),
		})
	}

	count := map[alloc.Family]int{}

	for _, free := range detail.FreeRanges {
		out.Free = append(out.Free, formatRange(free))

		count[free.Family()]++
		out.Truncated = out.Truncated || count[free.Family()] == maxRanges
	}

	for _, name := range detail.Queue {
		machine := findOwner(owners, name)
		since := conditionSince(machine.condition, metav1.ConditionFalse)
		out.WaitingMachines = append(out.WaitingMachines, WaitingMachine{Machine: machine.object, Since: since})
	}

	return out
}

// formatRange returns a range of addresses as text. If the range has a single address, it returns that
// address.
func formatRange(run alloc.Range) string {
	if run.First == run.Last {
		return run.First.String()
	}

	return run.String()
}

// findOwner returns the owner with the given registry key. If the owner was deleted in the meantime, the
// result has the registry key as its name and nothing else.
func findOwner(owners map[string]owner, name string) owner {
	if machine, ok := owners[name]; ok {
		return machine
	}

	return owner{object: Object{Name: name}}
}

// conditionSince returns the time since which the condition has the given status. It returns nil if the
// condition is nil or has another status.
func conditionSince(condition *metav1.Condition, status metav1.ConditionStatus) *time.Time {
	if condition == nil || condition.Status != status {
		return nil
	}

	return &condition.LastTransitionTime.Time
}

// listOwners returns all KubevirtMachines and MachineClaims by their keys in the address registry.
func listOwners(ctx context.Context, reader client.Reader) (map[string]owner, error) {
	machines, err := watch.ListAll[*infrav1.KubevirtMachine](ctx, reader, &infrav1.KubevirtMachineList{})
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}

	out := map[string]owner{}

	for _, m := range machines {
		out[kubevirt.OwnerKey(m)] = owner{
			object: Object{kindMachine, m.Namespace, m.Name}, phase: string(m.Status.Phase),
			condition: meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionAddressesAllocated),
		}
	}

	machineClaims, err := watch.ListAll[*hfv1.MachineClaim](ctx, reader, &hfv1.MachineClaimList{})
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}

	for _, c := range machineClaims {
		out[claims.OwnerKey(c)] = owner{
			object: Object{kindClaim, c.Namespace, c.Name}, phase: string(c.Status.Phase),
			condition: meta.FindStatusCondition(c.Status.Conditions, hfv1.ConditionAddressAllocated),
		}
	}

	return out, nil
}
