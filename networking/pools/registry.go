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
	b := &AddressRegistry{}
	b.startup.done = make(chan struct{})
	b.initMaps()

	return b
}

func (b *AddressRegistry) initMaps() {
	b.networks, b.networkByPool, b.unread = map[string]*network{}, map[string]string{}, map[string]map[string]bool{}
}

func (b *AddressRegistry) ensureNetwork(name string) *network {
	n := b.networks[name]
	if n == nil {
		n = &network{
			addresses: alloc.NewNetwork(name), pools: map[string]Pool{},
			queues: map[string][]waiter{}, blocked: map[string]func(){},
		}
		b.adopt(name, n)
		b.networks[name] = n
	}

	return n
}

// SetPool adds a pool, or replaces the pool with the same name on this or another network. Addresses in use
// stay with their owners. SetPool calls Wake of the waiting owners that can get addresses now.
//
// If SetPool returns an *alloc.OverlapError, the error names the other pool and no pool has changed. In this
// case wake is called once, when another attempt can succeed. wake may be nil.
func (b *AddressRegistry) SetPool(p Pool, wake func()) error {
	name := p.Addresses.Name()

	b.mu.Lock()
	b.removeBlockedPool(name)

	if related, err := b.checkRelatedPools(p); err != nil {
		related.block(poolPrefix+name, wake)
		b.mu.Unlock()

		return err
	}

	n := b.ensureNetwork(p.Network)
	gateways := n.addresses.Gateways()

	if _, err := n.addresses.SetPool(p.Addresses); err != nil {
		n.block(poolPrefix+name, wake)
		b.mu.Unlock()

		return fmt.Errorf("set pool %s: %w", name, err)
	}

	var callbacks []func()
	if networkName, found := b.networkByPool[name]; found && networkName != p.Network {
		callbacks = b.removePool(networkName, name)
	}

	n.pools[name], b.networkByPool[name] = p, p.Network
	callbacks = append(callbacks, n.collectCallbacks()...)
	callbacks = append(callbacks, b.publish(p.Network, append(gateways, n.addresses.Gateways()...)...)...)
	b.mu.Unlock()

	callAll(callbacks)

	return nil
}

// RemovePool removes a pool, if the registry has it. Addresses in use stay with their owners.
func (b *AddressRegistry) RemovePool(name string) {
	b.mu.Lock()

	b.removeBlockedPool(name)

	var callbacks []func()
	if networkName, found := b.networkByPool[name]; found {
		callbacks = b.removePool(networkName, name)
		delete(b.networkByPool, name)
	}

	b.mu.Unlock()

	callAll(callbacks)
}

// poolPrefix precedes the name of a pool in the keys of network.blocked.
const poolPrefix = "pool "

// removeBlockedPool removes the callback of a blocked pool, and the networks that existed only for it.
func (b *AddressRegistry) removeBlockedPool(pool string) {
	for name, n := range b.networks {
		if _, found := n.blocked[poolPrefix+pool]; found {
			delete(n.blocked, poolPrefix+pool)
			b.deleteIfEmpty(name)
		}
	}
}

// removePool removes a pool from a network, and returns the callbacks to call.
func (b *AddressRegistry) removePool(networkName, name string) []func() {
	n := b.networks[networkName]
	gateways := n.addresses.Gateways()
	n.addresses.RemovePool(name)
	delete(n.pools, name)

	callbacks := append(n.collectCallbacks(), b.publish(networkName, gateways...)...)
	// The owners that waited for the pool must notice that it no longer exists.
	for _, w := range n.queues[name] {
		callbacks = append(callbacks, w.wake)
	}

	delete(n.queues, name)
	b.deleteIfEmpty(networkName)

	return callbacks
}

// deleteIfEmpty deletes a network without pools, owners and callbacks.
func (b *AddressRegistry) deleteIfEmpty(name string) {
	n := b.networks[name]
	if n != nil && len(n.pools)+len(n.queues)+len(n.blocked) == 0 && len(n.addresses.Assignments()) == 0 {
		delete(b.networks, name)
	}
}

// Status returns the status of a pool, and false if the registry does not have the pool.
func (b *AddressRegistry) Status(pool string) (Status, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	networkName, found := b.networkByPool[pool]
	if !found {
		return Status{}, false
	}

	return b.networks[networkName].status(networkName, pool), true
}

// Statuses returns the statuses of all pools, sorted by network and name.
func (b *AddressRegistry) Statuses() []Status {
	b.mu.Lock()
	defer b.mu.Unlock()

	out := make([]Status, 0, len(b.networkByPool))
	for pool, networkName := range b.networkByPool {
		out = append(out, b.networks[networkName].status(networkName, pool))
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

// AssignmentsOutside returns the addresses in use of a pool that the pool no longer contains because
// it shrank, in ascending order. The registry does not allocate them again after their release.
func (b *AddressRegistry) AssignmentsOutside(pool string) []alloc.Assignment {
	b.mu.Lock()
	defer b.mu.Unlock()

	networkName, found := b.networkByPool[pool]
	if !found {
		return nil
	}

	return b.networks[networkName].addresses.AssignmentsOutside(pool)
}
