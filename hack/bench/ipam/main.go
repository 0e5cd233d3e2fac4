// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command ipam compares networking/alloc with github.com/metal-stack/go-ipam and with the allocator of
// github.com/k8snetworkplumbingwg/whereabouts, all in memory. It prints how many times faster networking/alloc is. The
// command is in a separate module, so that HyperFleet does not depend on the other allocators. The folder incluster has
// a comparison with Cluster API's in-cluster provider, whose allocator is in an internal package.
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

// prefix has 65,534 addresses.
const prefix = "10.0.0.0/16"

// repetitions is how often each measurement of networking/alloc is repeated, because a single run is too short to
// measure. The result is the mean.
const repetitions = 20

// acquireCount is how many addresses are acquired to measure the mean time of one acquire.
const acquireCount = 50

func main() {
	count := flag.Int("addresses", 16_000, "number of addresses to allocate")
	alone := flag.Bool("alone", false, "measure only networking/alloc")
	flag.Parse()

	err := printGrowth()
	if err == nil && !*alone {
		err = run(*count)
	}

	if err != nil {
		fmt.Fprintln(os.Stderr, "ipam:", err)
		os.Exit(1)
	}
}

// peer is another allocator that stores its addresses in memory.
type peer interface {
	// acquire acquires count addresses.
	acquire(count int) error
	// measureAcquire returns the time to acquire one address. It releases the acquired addresses.
	measureAcquire() (time.Duration, error)
}

func run(count int) error {
	names := make([]string, count+acquireCount)
	for i := range names {
		names[i] = "machine-" + strconv.Itoa(i)
	}

	fillTime, err := measureFill(names[:count])
	if err != nil {
		return err
	}

	ipam, err := newGoIPAM()
	if err != nil {
		return err
	}

	for _, p := range []struct {
		name string
		peer peer
	}{{"go-ipam 1.14.8", ipam}, {"whereabouts 0.8.0", newWhereabouts()}} {
		fmt.Printf("%-34s %14s %20s %10s\n", "", "alloc", p.name, "ratio")

		if err := compare(p.peer, names, count, fillTime); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}

	return nil
}

// compare allocates count addresses with a peer and prints one line for each measurement. It measures single acquires
// between the allocations, and releases their addresses. fillTime is the time that networking/alloc needs to allocate
// count addresses.
func compare(p peer, names []string, count int, fillTime time.Duration) error {
	network, err := newNetwork(prefix, nil)
	if err != nil {
		return err
	}

	var peerFillTime time.Duration

	inUse := 0

	for _, target := range []int{1_000, 10_000, count} {
		if target > count || target <= inUse {
			continue
		}

		start := time.Now()

		if err := p.acquire(target - inUse); err != nil {
			return err
		}

		peerFillTime += time.Since(start)

		for _, name := range names[inUse:target] {
			if _, err := network.Acquire("p", name); err != nil {
				return err
			}
		}

		inUse = target

		acquireTime, err := measureAcquire(network, names[count:])
		if err != nil {
			return err
		}

		peerAcquireTime, err := p.measureAcquire()
		if err != nil {
			return err
		}

		printLine(fmt.Sprintf("one more with %d in use", target), acquireTime, peerAcquireTime)
	}

	printLine(fmt.Sprintf("filling %d addresses", count), fillTime, peerFillTime)

	return nil
}

func printLine(title string, allocTime, peerTime time.Duration) {
	fmt.Printf("%-34s %14s %20s %9.0fx\n", title, allocTime, peerTime, float64(peerTime)/float64(allocTime))
}

func newNetwork(addresses string, names []string) (*alloc.Network, error) {
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

func measureFill(names []string) (time.Duration, error) {
	start := time.Now()

	for range repetitions {
		if _, err := newNetwork(prefix, names); err != nil {
			return 0, err
		}
	}

	return time.Since(start) / repetitions, nil
}

// measureAcquire returns the time to acquire one address. It releases the acquired addresses.
func measureAcquire(network *alloc.Network, names []string) (time.Duration, error) {
	var total time.Duration

	for range repetitions {
		start := time.Now()

		for _, name := range names {
			if _, err := network.Acquire("p", name); err != nil {
				return 0, err
			}
		}

		total += time.Since(start)

		for _, name := range names {
			network.Release(name)
		}
	}

	return total / time.Duration(repetitions*len(names)), nil
}

// goIPAM is go-ipam with its in-memory store.
type goIPAM struct {
	ipam goipam.Ipamer
	cidr string
}

func newGoIPAM() (*goIPAM, error) {
	ipam := goipam.New(context.Background())

	created, err := ipam.NewPrefix(context.Background(), prefix)
	if err != nil {
		return nil, err
	}

	return &goIPAM{ipam: ipam, cidr: created.Cidr}, nil
}

func (t *goIPAM) acquire(count int) error {
	for range count {
		if _, err := t.ipam.AcquireIP(context.Background(), t.cidr); err != nil {
			return err
		}
	}

	return nil
}

func (t *goIPAM) measureAcquire() (time.Duration, error) {
	acquired := make([]*goipam.IP, 0, acquireCount)
	start := time.Now()

	for range acquireCount {
		ip, err := t.ipam.AcquireIP(context.Background(), t.cidr)
		if err != nil {
			return 0, err
		}

		acquired = append(acquired, ip)
	}

	duration := time.Since(start)

	for _, ip := range acquired {
		if _, err := t.ipam.ReleaseIP(context.Background(), ip); err != nil {
			return 0, err
		}
	}

	return duration / acquireCount, nil
}
