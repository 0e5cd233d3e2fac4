// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"runtime"
	"strconv"
)

// few and many are numbers of addresses in use, for which the allocation of one more address is measured.
const few, many = 1_000, 1_000_000

// poolCount is the number of pools that are created to measure the memory of one pool.
const poolCount = 1_000

// printGrowth prints how the time to allocate an address depends on the number of addresses in use, and how the memory
// of a pool depends on its size.
func printGrowth() error {
	// The prefix has 16,777,214 addresses.
	const widePrefix = "10.0.0.0/8"

	names := make([]string, many+acquireCount)
	for i := range names {
		names[i] = "machine-" + strconv.Itoa(i)
	}

	var cost []float64

	for _, count := range []int{few, many} {
		network, err := newNetwork(widePrefix, names[:count])
		if err != nil {
			return err
		}

		runtime.GC()

		duration, err := measureAcquire(network, names[many:])
		if err != nil {
			return err
		}

		cost = append(cost, float64(duration))
	}

	small, err := measurePoolMemory("10.0.0.0/24")
	if err != nil {
		return err
	}

	large, err := measurePoolMemory("fd00::/64")
	if err != nil {
		return err
	}

	fmt.Printf("%-48s %7.0fns %9.0fns %6.1fx\n", "one more, with 1,000 and with 1,000,000 in use", cost[0], cost[1], cost[1]/cost[0])
	fmt.Printf("%-48s %7dB  %9dB  %6.1fx\n", "memory of a pool, a /24 and a /64", small, large, float64(large)/float64(small))

	return nil
}

// measurePoolMemory returns the memory of a pool with one address in use, in bytes.
func measurePoolMemory(addresses string) (uint64, error) {
	var initial, final runtime.MemStats

	networks := make([]any, 0, poolCount)

	runtime.GC()
	runtime.ReadMemStats(&initial)

	for range poolCount {
		network, err := newNetwork(addresses, []string{"machine"})
		if err != nil {
			return 0, err
		}

		networks = append(networks, network)
	}

	runtime.GC()
	runtime.ReadMemStats(&final)
	runtime.KeepAlive(networks)

	return (final.HeapAlloc - initial.HeapAlloc) / poolCount, nil
}
