// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// Pool is a pool as it stands in the address registry.
type Pool struct {
	// Network is the key of the network that the addresses are on: two pools may give the
	// same addresses on two networks, and not on one.
	Network string
	// Cluster that the pool's machines belong to, for metrics.
	Cluster string
	// Addresses of the pool. Its name is its own among all pools of the address registry.
	Addresses *alloc.Pool
}

// Request asks for an owner's addresses.
type Request struct {
	Network, Pool string
	// Owner is one machine's interface alone, in words that errors can show, such as
	// NAMESPACE/NAME/UID.
	Owner string
	// Want are addresses to give; for a family without any, it is the lowest free one.
	Want []netip.Addr
	// Wake is called, on any goroutine, once after a refusal when it is worth asking
	// again. It must not block, nor call the address registry.
	Wake func()
}

// Status is how a pool stands.
type Status struct {
	Network, Cluster, Name string
	// IPv4 and IPv6 are all zero for a family that the pool has no addresses of.
	IPv4, IPv6 alloc.Usage
	// Waiting is how many owners asked in vain, and were not woken since.
	Waiting int
}

// Machines is how many more machines the pool can serve.
func (s *Status) Machines() uint64 {
	switch {
	case s.IPv4.Size == 0:
		return s.IPv6.Free
	case s.IPv6.Size == 0:
		return s.IPv4.Free
	default:
		return min(s.IPv4.Free, s.IPv6.Free)
	}
}

// AddressRegistry is the networks of a process. Many may use it at once; an address on a network
// has one owner at most. Make one with New.
type AddressRegistry struct {
	mu       sync.Mutex
	networks map[string]*network
	// homes is the network of each pool.
	homes map[string]string

	warm warmup
}

// network is one network with those who wait for something on it.
type network struct {
	addresses *alloc.Network
	pools     map[string]Pool
	// waiting are those who found a pool full or not there, by pool, the first in front.
	waiting map[string][]waiter
	// refused are those who can only go on when something of the network changes, by
	// owner or pool: what they want is somebody else's.
	refused map[string]func()
}

// waiter is in its list until it has what it waits for, or is forgotten: what it was woken
// for is kept for it.
type waiter struct {
	owner string
	wake  func()
	// woken says that it was called, and has not asked again.
	woken bool
}

// New makes an empty address registry. It is Ready after Rebuild.
func New() *AddressRegistry {
	b := &AddressRegistry{}
	b.warm.done = make(chan struct{})
	b.clear()

	return b
}

func (b *AddressRegistry) clear() {
	b.networks, b.homes = map[string]*network{}, map[string]string{}
}

func (b *AddressRegistry) network(name string) *network {
	n := b.networks[name]
	if n == nil {
		n = &network{
			addresses: alloc.NewNetwork(name), pools: map[string]Pool{},
			waiting: map[string][]waiter{}, refused: map[string]func(){},
		}
		b.networks[name] = n
	}

	return n
}

// SetPool adds a pool, or puts it in the place of the one with its name, be it on this
// network or on another. Addresses in use stay with their owners. Owners who wait and can
// be served now are woken.
//
// With an *alloc.OverlapError, which names the other pool, all is as it was before, and
// wake is called once when it is worth trying again. It may be nil.
func (b *AddressRegistry) SetPool(p Pool, wake func()) error {
	name := p.Addresses.Name()

	b.mu.Lock()
	b.unrefuse(name)
	n := b.network(p.Network)

	if _, err := n.addresses.SetPool(p.Addresses); err != nil {
		n.refuse(poolPrefix+name, wake)
		b.mu.Unlock()

		return fmt.Errorf("set pool %s: %w", name, err)
	}

	var woken []func()
	if home, there := b.homes[name]; there && home != p.Network {
		woken = b.remove(home, name)
	}

	n.pools[name], b.homes[name] = p, p.Network
	woken = append(woken, n.changed()...)
	b.mu.Unlock()

	call(woken)

	return nil
}

// RemovePool takes a pool away, if it is there. Addresses in use stay with their owners.
func (b *AddressRegistry) RemovePool(name string) {
	b.mu.Lock()

	b.unrefuse(name)

	var woken []func()
	if home, there := b.homes[name]; there {
		woken = b.remove(home, name)
		delete(b.homes, name)
	}

	b.mu.Unlock()

	call(woken)
}

// poolPrefix is before a pool's name among those that are refused.
const poolPrefix = "pool "

// unrefuse forgets a pool that was refused, and the networks that were there for it alone.
func (b *AddressRegistry) unrefuse(pool string) {
	for name, n := range b.networks {
		if _, there := n.refused[poolPrefix+pool]; there {
			delete(n.refused, poolPrefix+pool)
			b.drop(name)
		}
	}
}

// remove takes a pool off a network.
func (b *AddressRegistry) remove(home, name string) []func() {
	n := b.networks[home]
	n.addresses.RemovePool(name)
	delete(n.pools, name)

	woken := n.changed()
	// Those who waited for the pool have to see that it is not there any more.
	for _, w := range n.waiting[name] {
		woken = append(woken, w.wake)
	}

	delete(n.waiting, name)
	b.drop(home)

	return woken
}

// drop forgets a network that holds nothing.
func (b *AddressRegistry) drop(name string) {
	n := b.networks[name]
	if n != nil && len(n.pools)+len(n.waiting)+len(n.refused) == 0 && len(n.addresses.Held()) == 0 {
		delete(b.networks, name)
	}
}

// Acquire gives an owner one address of each family that the pool has, and keeps what the
// owner has already: asking again gives the same. The result is IPv4 first, each with its
// prefix length.
//
// Errors are *alloc.ExhaustedError, *alloc.UnavailableError and alloc.ErrNoPool. Nothing
// is taken then, the owner is put on the list of those who wait, and Wake is called when
// the pool has an address for it; those who came first are woken first. The address is kept
// for them: who comes later does not get it meanwhile. So an owner that will not ask again
// has to be Released, or Forgotten.
func (b *AddressRegistry) Acquire(r Request) ([]netip.Prefix, error) {
	b.mu.Lock()
	woken := b.leave(r)
	got, err := b.acquire(r)
	b.mu.Unlock()

	call(woken)

	return got, err
}

func (b *AddressRegistry) acquire(r Request) ([]netip.Prefix, error) {
	n := b.network(r.Network)

	var got []netip.Prefix

	err := n.turn(r)
	if err == nil {
		got, err = n.addresses.Acquire(r.Pool, r.Owner, r.Want...)
	}

	var unavailable *alloc.UnavailableError

	switch {
	case err == nil:
		n.forget(r.Owner)
	case errors.As(err, &unavailable):
		n.refuse(r.Owner, r.Wake)
	default:
		n.wait(r)
	}

	if err != nil {
		b.drop(r.Network) // where nothing is kept of the request

		return nil, fmt.Errorf("acquire addresses for %s: %w", r.Owner, err)
	}

	return got, nil
}

// Expect puts an owner that is on record as one who waits at the end of its pool's list: a
// restart changes nothing about whose turn it is. The owner still has to ask by itself, as
// after a refusal.
func (b *AddressRegistry) Expect(network, pool, owner string) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if n := b.network(network); len(n.addresses.Of(owner)) == 0 {
		n.wait(Request{Network: network, Pool: pool, Owner: owner, Wake: func() {}})
	}
}

// Restore puts on record that an address is in use, whatever the pools say. The error is
// an *alloc.ConflictError if somebody else has the address, who keeps it.
func (b *AddressRegistry) Restore(network string, held alloc.Held) error {
	b.mu.Lock()
	n := b.network(network)
	err := n.addresses.Restore(held)

	var woken []func()
	if err == nil {
		woken = b.leave(Request{Owner: held.Owner}) // it has what it waited for
	}

	b.mu.Unlock()

	call(woken)

	if err != nil {
		return fmt.Errorf("restore addresses of %s: %w", held.Owner, err)
	}

	return nil
}

// Forget takes an owner off the lists of those who wait. What it has, it keeps.
func (b *AddressRegistry) Forget(owner string) {
	b.mu.Lock()

	var woken []func()

	for name, n := range b.networks {
		n.forget(owner)

		woken = append(woken, n.changed()...)

		b.drop(name)
	}

	b.mu.Unlock()

	call(woken)
}

// Release frees all that an owner has, and takes it off the lists of those who wait.
// Whoever waits and can be served now is woken. Releasing twice changes nothing.
func (b *AddressRegistry) Release(owner string) []alloc.Held {
	b.mu.Lock()

	var (
		freed []alloc.Held
		woken []func()
	)

	for name, n := range b.networks {
		n.forget(owner)

		held := n.addresses.Release(owner)
		freed = append(freed, held...)
		// Also without any: the owner may have been woken for what another one can have.
		woken = append(woken, n.changed()...)

		b.drop(name)
	}

	b.mu.Unlock()

	call(woken)

	return freed
}

// Of is all that an owner has, IPv4 first; none if it has nothing.
func (b *AddressRegistry) Of(owner string) []netip.Prefix {
	b.mu.Lock()
	defer b.mu.Unlock()

	var out []netip.Prefix
	for _, n := range b.networks {
		out = append(out, n.addresses.Of(owner)...)
	}

	slices.SortFunc(out, func(x, y netip.Prefix) int { return x.Addr().Compare(y.Addr()) })

	return out
}

// Owners are those who have an address, or wait for one, and whose text begins so, in order.
// It reads the whole address registry, so it is for what is rare.
func (b *AddressRegistry) Owners(prefix string) []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	found := map[string]bool{}

	for _, n := range b.networks {
		for _, held := range n.addresses.Held() {
			found[held.Owner] = true
		}

		for _, list := range n.waiting {
			for _, w := range list {
				found[w.owner] = true
			}
		}

		for who := range n.refused {
			found[who] = true
		}
	}

	maps.DeleteFunc(found, func(owner string, _ bool) bool { return !strings.HasPrefix(owner, prefix) })

	return slices.Sorted(maps.Keys(found))
}

// Status tells how a pool stands; false if the address registry does not have it.
func (b *AddressRegistry) Status(pool string) (Status, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()

	home, there := b.homes[pool]
	if !there {
		return Status{}, false
	}

	return b.networks[home].status(home, pool), true
}

// Statuses tells how all pools stand, by network and name.
func (b *AddressRegistry) Statuses() []Status {
	b.mu.Lock()
	defer b.mu.Unlock()

	out := make([]Status, 0, len(b.homes))
	for pool, home := range b.homes {
		out = append(out, b.networks[home].status(home, pool))
	}

	slices.SortFunc(out, func(x, y Status) int {
		return cmp.Or(cmp.Compare(x.Network, y.Network), cmp.Compare(x.Name, y.Name))
	})

	return out
}

func (n *network) status(network, pool string) Status {
	return Status{
		Network: network, Name: pool, Cluster: n.pools[pool].Cluster, Waiting: n.asleep(pool),
		IPv4: n.addresses.Usage(pool, alloc.IPv4), IPv6: n.addresses.Usage(pool, alloc.IPv6),
	}
}

// Outside are the addresses in use of a pool that it no longer gives, by address: what
// was in use when it shrank. Once released, they are not given again.
func (b *AddressRegistry) Outside(pool string) []alloc.Held {
	b.mu.Lock()
	defer b.mu.Unlock()

	home, there := b.homes[pool]
	if !there {
		return nil
	}

	return b.networks[home].addresses.Outside(pool)
}
