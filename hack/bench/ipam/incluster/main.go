// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command bench compares networking/alloc with the allocator of Cluster API's in-cluster IPAM provider. The path of this
// module is below the path of the provider, so that the module can import the internal package with the allocator.
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
	// prefix has 65,534 addresses.
	prefix = "10.0.0.0/16"
	bits   = 16
	// acquireCount is how many addresses are acquired to measure the mean time of one acquire.
	acquireCount = 20
)

func main() {
	count := flag.Int("addresses", 16_000, "number of addresses to allocate")
	flag.Parse()

	if err := run(*count); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(count int) error {
	fmt.Printf("%-34s %14s %20s %10s\n", "", "alloc", "CAPI in-cluster 1.0.3", "ratio")

	fillTime, err := measureFill(count)
	if err != nil {
		return err
	}

	var (
		inUse        []string
		peerFillTime time.Duration
	)

	for _, target := range []int{1_000, 10_000, count} {
		if target > count || target <= len(inUse) {
			continue
		}

		start := time.Now()

		for len(inUse) < target {
			if inUse, err = acquire(inUse); err != nil {
				return err
			}
		}

		peerFillTime += time.Since(start)

		peerAcquireTime, err := measureAcquire(inUse)
		if err != nil {
			return err
		}

		network, err := newNetwork(target)
		if err != nil {
			return err
		}

		start = time.Now()

		for i := range acquireCount {
			if _, err := network.Acquire("p", "more-"+strconv.Itoa(i)); err != nil {
				return err
			}
		}

		printLine(fmt.Sprintf("one more with %d in use", target), time.Since(start)/acquireCount, peerAcquireTime)
	}

	printLine(fmt.Sprintf("filling %d addresses", count), fillTime, peerFillTime)

	return nil
}

func printLine(title string, allocTime, peerTime time.Duration) {
	fmt.Printf("%-34s %14s %20s %9.0fx\n", title, allocTime, peerTime, float64(peerTime)/float64(allocTime))
}

// acquire allocates one address as the provider does for a claim after it has listed the addresses in use. It creates
// sets of the pool's addresses and of the addresses in use, and finds the first free address.
func acquire(inUse []string) ([]string, error) {
	pool, err := poolutil.PoolSpecToIPSet(&v1alpha2.InClusterIPPoolSpec{Addresses: []string{prefix}, Prefix: bits})
	if err != nil {
		return nil, err
	}

	inUseSet, err := poolutil.AddressesToIPSet(inUse)
	if err != nil {
		return nil, err
	}

	var free netip.Addr

	if free, err = poolutil.FindFreeAddress(pool, inUseSet); err != nil {
		return nil, err
	}

	return append(inUse, free.String()), nil
}

// measureAcquire returns the time to acquire one address. It does not change inUse.
func measureAcquire(inUse []string) (time.Duration, error) {
	start := time.Now()
	addresses := inUse

	for range acquireCount {
		var err error
		if addresses, err = acquire(addresses); err != nil {
			return 0, err
		}
	}

	return time.Since(start) / acquireCount, nil
}

// newNetwork returns a network with count addresses in use.
func newNetwork(count int) (*alloc.Network, error) {
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

func measureFill(count int) (time.Duration, error) {
	start := time.Now()
	_, err := newNetwork(count)

	return time.Since(start), err
}
