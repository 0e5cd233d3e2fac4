// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench measures networking/alloc beside the allocator of Cluster API's in-cluster
// IPAM provider, in one run. The module has a path below the provider's, for the allocator is
// in a folder that only such code may import; nothing of it is copied here.
package main

import (
	"flag"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"time"

	"sigs.k8s.io/cluster-api-ipam-provider-in-cluster/api/v1alpha2"
	"sigs.k8s.io/cluster-api-ipam-provider-in-cluster/internal/poolutil"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

const (
	// prefix has room for 65,534 addresses.
	prefix = "10.0.0.0/16"
	bits   = 16
	// singles is how many addresses are acquired one by one on top of those in use.
	singles = 20
)

func main() {
	count := flag.Int("addresses", 16_000, "how many addresses to fill")
	flag.Parse()

	if err := run(*count); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(count int) error {
	fmt.Printf("%-34s %14s %20s %10s\n", "", "alloc", "CAPI in-cluster 1.0.3", "ratio")

	ours, err := fill(count)
	if err != nil {
		return err
	}

	var (
		inUse  []string
		filled time.Duration
	)

	for _, at := range []int{1_000, 10_000, count} {
		if at > count || at <= len(inUse) {
			continue
		}

		begun := time.Now()

		for len(inUse) < at {
			if inUse, err = acquire(inUse); err != nil {
				return err
			}
		}

		filled += time.Since(begun)

		theirs, err := one(inUse)
		if err != nil {
			return err
		}

		network, err := filledTo(at)
		if err != nil {
			return err
		}

		begun = time.Now()

		for i := range singles {
			if _, err := network.Acquire("p", "more-"+strconv.Itoa(i)); err != nil {
				return err
			}
		}

		line(fmt.Sprintf("one more with %d in use", at), time.Since(begun)/singles, theirs)
	}

	line(fmt.Sprintf("filling %d addresses", count), ours, filled)

	return nil
}

func line(what string, ours, theirs time.Duration) {
	fmt.Printf("%-34s %14s %20s %9.0fx\n", what, ours, theirs, float64(theirs)/float64(ours))
}

// acquire is what the provider does for one claim, once it has listed the addresses in use:
// it makes sets of the pool and of them, and looks for the first that is free.
func acquire(inUse []string) ([]string, error) {
	pool, err := poolutil.PoolSpecToIPSet(&v1alpha2.InClusterIPPoolSpec{Addresses: []string{prefix}, Prefix: bits})
	if err != nil {
		return nil, err
	}

	taken, err := poolutil.AddressesToIPSet(inUse)
	if err != nil {
		return nil, err
	}

	var free netip.Addr

	if free, err = poolutil.FindFreeAddress(pool, taken); err != nil {
		return nil, err
	}

	return append(inUse, free.String()), nil
}

func one(inUse []string) (time.Duration, error) {
	begun := time.Now()
	more := inUse

	for range singles {
		var err error
		if more, err = acquire(more); err != nil {
			return 0, err
		}
	}

	return time.Since(begun) / singles, nil
}

func filledTo(count int) (*alloc.Network, error) {
	pool, err := alloc.NewPool("p", alloc.Spec{Addresses: []string{prefix}})
	if err != nil {
		return nil, err
	}

	network, err := alloc.Rebuild("net", []*alloc.Pool{pool}, nil)
	if err != nil {
		return nil, err
	}

	for i := range count {
		if _, err := network.Acquire("p", "machine-"+strconv.Itoa(i)); err != nil {
			return nil, err
		}
	}

	return network, nil
}

func fill(count int) (time.Duration, error) {
	begun := time.Now()
	_, err := filledTo(count)

	return time.Since(begun), err
}
