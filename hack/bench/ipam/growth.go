// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"strconv"
)

// few and many are how many addresses are in use when one more is given.
const few, many = 1_000, 1_000_000

// pools is how many pools are made to know what one takes.
const pools = 1_000

// growth prints how the cost of networking/alloc grows: that of one address with the number
// of those in use, and that of a pool with its size.
func growth() error {
	// Room for 16,777,214 addresses.
	const wide = "10.0.0.0/8"

	names := make([]string, many+singles)
	for i := range names {
		names[i] = "machine-" + strconv.Itoa(i)
	}

	var cost []float64

	for _, count := range []int{few, many} {
		network, err := newOurs(wide, names[:count])
		if err != nil {
			return err
		}

		runtime.GC()

		took, err := oneOfOurs(network, names[many:])
		if err != nil {
			return err
		}

		cost = append(cost, float64(took))
	}

	small, err := weight("10.0.0.0/24")
	if err != nil {
		return err
	}

	large, err := weight("fd00::/64")
	if err != nil {
		return err
	}

	fmt.Printf("%-48s %7.0fns %9.0fns %6.1fx\n", "one more, with 1,000 and with 1,000,000 in use", cost[0], cost[1], cost[1]/cost[0])
	fmt.Printf("%-48s %7dB  %9dB  %6.1fx\n", "memory of a pool, a /24 and a /64", small, large, float64(large)/float64(small))

	return nil
}

// weight is what a pool with one address in use keeps in memory, in bytes.
func weight(addresses string) (uint64, error) {
	var before, after runtime.MemStats

	kept := make([]any, 0, pools)

	runtime.GC()
	runtime.ReadMemStats(&before)

	for range pools {
		network, err := newOurs(addresses, []string{"machine"})
		if err != nil {
			return 0, err
		}

		kept = append(kept, network)
	}

	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(kept)

	return (after.HeapAlloc - before.HeapAlloc) / pools, nil
}
