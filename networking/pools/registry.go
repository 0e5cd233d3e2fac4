// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"cmp"
	"fmt"
	"slices"
	"sync"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// Pool is a pool in the address registry.
type Pool struct {
	// Network is the key of the network to which the addresses belong. Two pools can contain the same
	// addresses only if they are on different networks. Networks whose keys differ can be one network too
	// (hypervisor.MayBeSameNetwork).
	Network string
	// Cluster is the cluster to which the pool's machines belong. Metrics use it.
	Cluster string
	// Addresses is the pool itself. Its name must be unique in the address registry.
	Addresses *alloc.Pool
}

// Status is the usage of a pool.
type Status struct {
	Network, Cluster, Name string
	// IPv4 and IPv6 are zero for a family without addresses in the pool.
	IPv4, IPv6 alloc.Usage
	// Waiting is the number of owners whose request failed and whose Wake was not called since.
	Waiting int
}

// CountAllocatable returns for how many more machines the pool has free addresses. In a pool with IPv4 and IPv6, each machine
// needs one address of each.
func (s *Status) CountAllocatable() uint64 {
	switch {
	case s.IPv4.Size == 0:
		return s.IPv6.Free
	case s.IPv6.Size == 0:
		return s.IPv4.Free
	default:
		return min(s.IPv4.Free, s.IPv6.Free)
	}
}

// AddressRegistry holds the networks of a process. It is safe for concurrent use. An address on a network has
// at most one owner. Create a registry with New.
type AddressRegistry struct {
	mu       sync.Mutex
	networks map[string]*network
	// networkByPool maps the name of each pool to the name of its network.
	networkByPool map[string]string
	// unread has the owners whose addresses could not be read back, by pool.
	unread map[string]map[string]bool

	startup startupRebuild
}

// network is one network with the owners that wait for addresses on it.
type network struct {
	addresses *alloc.Network
	pools     map[string]Pool
	// queues has the owners that found a pool exhausted or missing, by pool. The first owner is served first.
	queues map[string][]waiter
	// blocked has callbacks for owners and pools whose addresses belong to another owner or pool. They are
	// called at the next change of the network. The key is the owner, or poolPrefix and the pool.
	blocked map[string]func()
}

// New returns an empty address registry. It is ready after the rebuild that its RebuildSource starts.
func New() *AddressRegistry {
	a := &AddressRegistry{}
	a.startup.done = make(chan struct{})
	a.initMaps()

	return a
}

func (a *AddressRegistry) initMaps() {
	a.networks, a.networkByPool, a.unread = map[string]*network{}, map[string]string{}, map[string]map[string]bool{}
}

func (a *AddressRegistry) ensureNetwork(name string) *network {
	n := a.networks[name]
	if n == nil {
		n = &network{
			addresses: alloc.NewNetwork(name), pools: map[string]Pool{},
			queues: map[string][]waiter{}, blocked: map[string]func(){},
		}
		a.occupyRelatedAddresses(name, n)
		a.networks[name] = n
	}

	return n
}

// SetPool adds a pool, or replaces the pool with the same name on this or another network. Addresses in use
// stay with their owners. SetPool calls Wake of the waiting owners that can get addresses now.
//
// If SetPool returns an *alloc.OverlapError, the error names the other pool and no pool has changed. In this
// case wake is called once, when another attempt can succeed. wake may be nil.
func (a *AddressRegistry) SetPool(p Pool, wake func()) error {
	name := p.Addresses.Name()

	a.mu.Lock()
	a.removeBlockedPool(name)

	if related, err := a.checkRelatedPools(p); err != nil {
		related.storeCallback(poolPrefix+name, wake)
		a.mu.Unlock()

		return err
	}

	n := a.ensureNetwork(p.Network)
	gateways := n.addresses.Gateways()

	if _, err := n.addresses.SetPool(p.Addresses); err != nil {
		n.storeCallback(poolPrefix+name, wake)
		a.mu.Unlock()

		return fmt.Errorf("set pool %s: %w", name, err)
	}

	var wakeFuncs []func()
	if networkName, found := a.networkByPool[name]; found && networkName != p.Network {
		wakeFuncs = a.removePool(networkName, name)
	}

	n.pools[name], a.networkByPool[name] = p, p.Network
	wakeFuncs = append(wakeFuncs, n.takeWakeFuncs()...)
	wakeFuncs = append(wakeFuncs, a.updateRelated(p.Network, append(gateways, n.addresses.Gateways()...)...)...)
	a.mu.Unlock()

	callAll(wakeFuncs)

	return nil
}

// RemovePool removes a pool, if the registry has it. Addresses in use stay with their owners.
func (a *AddressRegistry) RemovePool(name string) {
	a.mu.Lock()

	a.removeBlockedPool(name)

	var wakeFuncs []func()
	if networkName, found := a.networkByPool[name]; found {
		wakeFuncs = a.removePool(networkName, name)
		delete(a.networkByPool, name)
	}

	a.mu.Unlock()

	callAll(wakeFuncs)
}

// poolPrefix precedes the name of a pool in the keys of network.blocked.
const poolPrefix = "pool "

// removeBlockedPool removes the callback of a blocked pool, and the networks that existed only for it.
func (a *AddressRegistry) removeBlockedPool(pool string) {
	for name, n := range a.networks {
		if _, found := n.blocked[poolPrefix+pool]; found {
			delete(n.blocked, poolPrefix+pool)
			a.deleteIfEmpty(name)
		}
	}
}

// removePool removes a pool from a network. It returns Wake of the owners that can get addresses now, and of the owners that
// waited for the pool, because they must notice that it no longer exists.
func (a *AddressRegistry) removePool(networkName, name string) []func() {
	n := a.networks[networkName]
	gateways := n.addresses.Gateways()
	n.addresses.RemovePool(name)
	delete(n.pools, name)

	wakeFuncs := append(n.takeWakeFuncs(), a.updateRelated(networkName, gateways...)...)
	for _, w := range n.queues[name] {
		wakeFuncs = append(wakeFuncs, w.wake)
	}

	delete(n.queues, name)
	a.deleteIfEmpty(networkName)

	return wakeFuncs
}

// deleteIfEmpty deletes a network without pools, owners and callbacks.
func (a *AddressRegistry) deleteIfEmpty(name string) {
	n := a.networks[name]
	if n != nil && len(n.pools)+len(n.queues)+len(n.blocked) == 0 && len(n.addresses.Assignments()) == 0 {
		delete(a.networks, name)
	}
}

// Status returns the status of a pool, and false if the registry does not have the pool.
func (a *AddressRegistry) Status(pool string) (Status, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	networkName, found := a.networkByPool[pool]
	if !found {
		return Status{}, false
	}

	return a.networks[networkName].status(networkName, pool), true
}

// Statuses returns the statuses of all pools, sorted by network and name.
func (a *AddressRegistry) Statuses() []Status {
	a.mu.Lock()
	defer a.mu.Unlock()

	out := make([]Status, 0, len(a.networkByPool))
	for pool, networkName := range a.networkByPool {
		out = append(out, a.networks[networkName].status(networkName, pool))
	}

	slices.SortFunc(out, func(x, y Status) int {
		return cmp.Or(cmp.Compare(x.Network, y.Network), cmp.Compare(x.Name, y.Name))
	})

	return out
}

func (n *network) status(network, pool string) Status {
	return Status{
		Network: network, Name: pool, Cluster: n.pools[pool].Cluster, Waiting: n.countWaiting(pool),
		IPv4: n.addresses.Usage(pool, alloc.IPv4), IPv6: n.addresses.Usage(pool, alloc.IPv6),
	}
}
