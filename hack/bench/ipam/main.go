// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command ipam measures networking/alloc beside github.com/metal-stack/go-ipam and the
// allocator of github.com/k8snetworkplumbingwg/whereabouts in one run, all in memory, and
// prints how many times faster the former is. It is a module of its own so that they are
// none of the product's dependencies. The folder incluster measures Cluster API's in-cluster
// provider, whose allocator only code of its own path may import.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"time"

	goipam "github.com/metal-stack/go-ipam"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// prefix has room for 65,534 addresses.
const prefix = "10.0.0.0/16"

// rounds is how often networking/alloc does the same, for a time that can be measured;
// the mean counts.
const rounds = 20

// singles is how many addresses are acquired one by one on top of those in use.
const singles = 50

func main() {
	count := flag.Int("addresses", 16_000, "how many addresses to fill")
	alone := flag.Bool("alone", false, "measure networking/alloc alone")
	flag.Parse()

	err := growth()
	if err == nil && !*alone {
		err = run(*count)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "ipam:", err)
		os.Exit(1)
	}
}

// peer is another allocator, with its addresses in memory.
type peer interface {
	// acquire takes so many addresses.
	acquire(count int) error
	// one is the time of one acquire; what was acquired is released again.
	one() (time.Duration, error)
}

func run(count int) error {
	names := make([]string, count+singles)
	for i := range names {
		names[i] = "machine-" + strconv.Itoa(i)
	}

	ours, err := fillOurs(names[:count])
	if err != nil {
		return err
	}

	ipam, err := newTheirs()
	if err != nil {
		return err
	}

	for _, p := range []struct {
		name string
		peer peer
	}{{"go-ipam 1.14.8", ipam}, {"whereabouts 0.8.0", newWhereabouts()}} {
		fmt.Printf("%-34s %14s %20s %10s\n", "", "alloc", p.name, "ratio")

		if err := compare(p.peer, names, count, ours); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}

	return nil
}

// compare fills a peer once, which serves all lines: single acquires are measured on the way,
// and given back. fill is what networking/alloc took.
func compare(p peer, names []string, count int, fill time.Duration) error {
	network, err := newOurs(prefix, nil)
	if err != nil {
		return err
	}

	var filled time.Duration

	done := 0

	for _, at := range []int{1_000, 10_000, count} {
		if at > count || at <= done {
			continue
		}

		begun := time.Now()

		if err := p.acquire(at - done); err != nil {
			return err
		}

		filled += time.Since(begun)

		for _, name := range names[done:at] {
			if _, err := network.Acquire("p", name); err != nil {
				return err
			}
		}

		done = at

		ourOne, err := oneOfOurs(network, names[count:])
		if err != nil {
			return err
		}

		theirOne, err := p.one()
		if err != nil {
			return err
		}

		line(fmt.Sprintf("one more with %d in use", at), ourOne, theirOne)
	}

	line(fmt.Sprintf("filling %d addresses", count), fill, filled)

	return nil
}

func line(what string, ours, theirs time.Duration) {
	fmt.Printf("%-34s %14s %20s %9.0fx\n", what, ours, theirs, float64(theirs)/float64(ours))
}

func newOurs(addresses string, names []string) (*alloc.Network, error) {
	pool, err := alloc.NewPool("p", alloc.Spec{Addresses: []string{addresses}})
	if err != nil {
		return nil, err
	}

	network, err := alloc.Rebuild("net", []*alloc.Pool{pool}, nil)
	if err != nil {
		return nil, err
	}

	for _, name := range names {
		if _, err := network.Acquire("p", name); err != nil {
			return nil, err
		}
	}

	return network, nil
}

func fillOurs(names []string) (time.Duration, error) {
	begun := time.Now()

	for range rounds {
		if _, err := newOurs(prefix, names); err != nil {
			return 0, err
		}
	}

	return time.Since(begun) / rounds, nil
}

// oneOfOurs is the time of one acquire; what was acquired is released again.
func oneOfOurs(network *alloc.Network, names []string) (time.Duration, error) {
	var took time.Duration

	for range rounds {
		begun := time.Now()

		for _, name := range names {
			if _, err := network.Acquire("p", name); err != nil {
				return 0, err
			}
		}

		took += time.Since(begun)

		for _, name := range names {
			network.Release(name)
		}
	}

	return took / time.Duration(rounds*len(names)), nil
}

// theirs is go-ipam with its memory for a store.
type theirs struct {
	ipam goipam.Ipamer
	cidr string
}

func newTheirs() (*theirs, error) {
	ipam := goipam.New(context.Background())

	made, err := ipam.NewPrefix(context.Background(), prefix)
	if err != nil {
		return nil, err
	}

	return &theirs{ipam: ipam, cidr: made.Cidr}, nil
}

func (t *theirs) acquire(count int) error {
	for range count {
		if _, err := t.ipam.AcquireIP(context.Background(), t.cidr); err != nil {
			return err
		}
	}

	return nil
}

// one is the time of one acquire; what was acquired is released again.
func (t *theirs) one() (time.Duration, error) {
	acquired := make([]*goipam.IP, 0, singles)
	begun := time.Now()

	for range singles {
		ip, err := t.ipam.AcquireIP(context.Background(), t.cidr)
		if err != nil {
			return 0, err
		}

		acquired = append(acquired, ip)
	}

	took := time.Since(begun)

	for _, ip := range acquired {
		if _, err := t.ipam.ReleaseIP(context.Background(), ip); err != nil {
			return 0, err
		}
	}

	return took / singles, nil
}
