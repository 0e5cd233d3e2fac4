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
	"github.com/hyperfleet/hyperfleet/kit/objects"
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

	// mostRuns bounds the runs of free addresses that are told of each family.
	mostRuns = 20
)

// query chooses pools.
type query struct {
	// namespace of what has the pool; empty means all.
	namespace string
	// pool is a name, perhaps with a kind before it; empty means all.
	pool string
}

// Object is what has a pool or an address.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

func (o Object) String() string { return o.Namespace + "/" + o.Name }

// Usage is how full a pool is, in addresses of one family.
type Usage struct {
	Size uint64 `json:"size"`
	Free uint64 `json:"free"`
}

// Address is an address in use.
type Address struct {
	Address string `json:"address"`
	// Machine has it.
	Machine Object `json:"machine"`
	// Phase of the machine.
	Phase string `json:"phase,omitempty"`
	// Since is when it was put on record; null if the machine does not say.
	Since *time.Time `json:"since"`
	// Outside says that the pool gives it to nobody any more.
	Outside bool `json:"outside,omitempty"`
}

// Waiting is a machine without an address.
type Waiting struct {
	Machine Object     `json:"machine"`
	Since   *time.Time `json:"since"`
}

// Pool is a pool of addresses.
type Pool struct {
	// Of are the objects whose pool it is: several where templates share one.
	Of []Object `json:"of"`
	// Network that the addresses are on.
	Network string `json:"network"`
	IPv4    Usage  `json:"ipv4"`
	IPv6    Usage  `json:"ipv6"`
	// Machines is how many more machines it can serve.
	Machines uint64 `json:"machines"`
	// Addresses in use, in order.
	Addresses []Address `json:"addresses"`
	// Free are runs of free addresses, in the order in which they are given; Cut says that
	// there may be more.
	Free []string `json:"free"`
	Cut  bool     `json:"cut,omitempty"`
	// Waiting are those whose turn it is next, in order.
	Waiting []Waiting `json:"waiting"`
	// Problem says why the pool gives no addresses.
	Problem string `json:"problem,omitempty"`
}

// owner is a machine as the address registry knows it.
type owner struct {
	object Object
	phase  string
	said   *metav1.Condition
}

// read gives the pools that are asked for, in order.
func read(ctx context.Context, reader client.Reader, q query) ([]Pool, error) {
	addresses, registry := networking.Addresses(reader)
	if err := addresses.Rebuild(ctx); err != nil {
		return nil, err
	}

	owners, err := ownersOf(ctx, reader)
	if err != nil {
		return nil, err
	}

	nodePools, err := objects.All[*infrav1.KubevirtNodePool](ctx, reader, &infrav1.KubevirtNodePoolList{})
	if err != nil {
		return nil, fmt.Errorf("list node pools: %w", err)
	}

	templates, err := objects.All[*hfv1.HypervisorMachineTemplate](ctx, reader, &hfv1.HypervisorMachineTemplateList{})
	if err != nil {
		return nil, fmt.Errorf("list templates: %w", err)
	}

	out := []Pool{}

	for _, p := range nodePools {
		if p.Spec.BootstrapNetworkConfig != nil {
			pool := describe(addresses, kubevirt.PoolName(p.Namespace, p.Name), owners)
			pool.Of = []Object{{kindNodePool, p.Namespace, p.Name}}
			pool.Problem = problem(p.Status.Conditions, infrav1.ConditionValidNetworkConfig)
			out = append(out, pool)
		}
	}

	out = append(out, ofTemplates(addresses, registry, templates, owners)...)
	out = slices.DeleteFunc(out, func(p Pool) bool { return !slices.ContainsFunc(p.Of, q.chooses) })

	if len(out) == 0 && q.pool != "" {
		return nil, fmt.Errorf("no KubevirtNodePool or HypervisorMachineTemplate %q with static addresses %s: "+
			"`hyperfleet addresses -A` lists those that have", q.pool, where(q.namespace))
	}

	slices.SortFunc(out, func(a, b Pool) int {
		return cmp.Or(cmp.Compare(a.Network, b.Network), cmp.Compare(a.Of[0].String(), b.Of[0].String()))
	})

	return out, nil
}

func where(namespace string) string {
	if namespace == "" {
		return "in any namespace"
	}

	return "in namespace " + namespace
}

// chooses says whether an object with a pool is asked for.
func (q query) chooses(o Object) bool {
	kind, name, qualified := strings.Cut(q.pool, "/")
	if !qualified {
		kind, name = "", q.pool
	}

	return (q.namespace == "" || o.Namespace == q.namespace) && (name == "" || o.Name == name) &&
		(kind == "" || strings.EqualFold(kind, o.Kind) || strings.EqualFold(kind, o.Kind+"s"))
}

// problem is what a condition says that is False.
func problem(conditions []metav1.Condition, name string) string {
	if said := meta.FindStatusCondition(conditions, name); said != nil && said.Status == metav1.ConditionFalse {
		return said.Message
	}

	return ""
}

// ofTemplates are the pools of templates, those that are shared once.
func ofTemplates(
	addresses *pools.AddressRegistry, registry *claims.Registry,
	templates []*hfv1.HypervisorMachineTemplate, owners map[string]owner,
) []Pool {
	var out []Pool

	known := map[string]int{}

	for _, t := range templates {
		if t.Spec.Network.AddressPool() == nil {
			continue
		}

		object := Object{kindTemplate, t.Namespace, t.Name}
		entry, _ := registry.Of(types.NamespacedName{Namespace: t.Namespace, Name: t.Name})

		if at, there := known[entry.Pool]; there && entry.Reason == "" {
			out[at].Of = append(out[at].Of, object)

			continue
		}

		pool := describe(addresses, entry.Pool, owners)
		pool.Of = []Object{object}
		pool.Problem = cmp.Or(entry.Message, problem(t.Status.Conditions, hfv1.ConditionAddressPoolReady))

		if entry.Pool != "" && entry.Reason == "" {
			known[entry.Pool] = len(out)
		}

		out = append(out, pool)
	}

	return out
}

// describe tells of a pool of the address registry.
func describe(addresses *pools.AddressRegistry, name string, owners map[string]owner) Pool {
	out := Pool{Addresses: []Address{}, Free: []string{}, Waiting: []Waiting{}}

	detail, there := addresses.Detail(name, mostRuns)
	if !there {
		return out
	}

	out.Network, out.Machines = detail.Network, detail.Machines()
	out.IPv4, out.IPv6 = Usage(detail.IPv4), Usage(detail.IPv6)

	for _, held := range detail.Held {
		who := find(owners, held.Owner)
		out.Addresses = append(out.Addresses, Address{
			Address: held.Address.String(), Machine: who.object, Phase: who.phase, Outside: detail.Outside[held],
			Since: since(who.said, metav1.ConditionTrue),
		})
	}

	count := map[alloc.Family]int{}

	for _, run := range detail.Unused {
		out.Free = append(out.Free, text(run))

		count[run.Family()]++
		out.Cut = out.Cut || count[run.Family()] == mostRuns
	}

	for _, name := range detail.Queue {
		who := find(owners, name)
		out.Waiting = append(out.Waiting, Waiting{Machine: who.object, Since: since(who.said, metav1.ConditionFalse)})
	}

	return out
}

// text is a run of addresses, one address alone by itself.
func text(run alloc.Range) string {
	if run.First == run.Last {
		return run.First.String()
	}

	return run.String()
}

// find is an owner; one that is gone by now is known by what the address registry calls it.
func find(owners map[string]owner, name string) owner {
	if who, there := owners[name]; there {
		return who
	}

	return owner{object: Object{Name: name}}
}

// since is when a condition came to say what it says; nil if it says something else.
func since(said *metav1.Condition, status metav1.ConditionStatus) *time.Time {
	if said == nil || said.Status != status {
		return nil
	}

	return &said.LastTransitionTime.Time
}

// ownersOf are all machines that may have addresses, as the address registry calls them.
func ownersOf(ctx context.Context, reader client.Reader) (map[string]owner, error) {
	machines, err := objects.All[*infrav1.KubevirtMachine](ctx, reader, &infrav1.KubevirtMachineList{})
	if err != nil {
		return nil, fmt.Errorf("list machines: %w", err)
	}

	out := map[string]owner{}

	for _, m := range machines {
		out[kubevirt.Owner(m)] = owner{
			object: Object{kindMachine, m.Namespace, m.Name}, phase: string(m.Status.Phase),
			said: meta.FindStatusCondition(m.Status.Conditions, infrav1.ConditionAddressesAllocated),
		}
	}

	all, err := objects.All[*hfv1.MachineClaim](ctx, reader, &hfv1.MachineClaimList{})
	if err != nil {
		return nil, fmt.Errorf("list claims: %w", err)
	}

	for _, c := range all {
		out[claims.Owner(c)] = owner{
			object: Object{kindClaim, c.Namespace, c.Name}, phase: string(c.Status.Phase),
			said: meta.FindStatusCondition(c.Status.Conditions, hfv1.ConditionAddressAllocated),
		}
	}

	return out, nil
}
