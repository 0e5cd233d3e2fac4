// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc_test

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strconv"
	"testing"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
)

// wide is a pool that never ends here.
func wide() alloc.Spec { return alloc.Spec{Addresses: []string{"10.0.0.0/8"}} }

func owners(count int) []string {
	out := make([]string, count)
	for i := range out {
		out[i] = "machine-" + strconv.Itoa(i)
	}

	return out
}

func fill(tb testing.TB, n *alloc.Network, owners []string) {
	for _, owner := range owners {
		if _, err := n.Acquire("p", owner); err != nil {
			tb.Fatal(err)
		}
	}
}

// BenchmarkFill is the time for all of the addresses.
func BenchmarkFill(b *testing.B) {
	for _, count := range []int{16_000, 65_000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			names := owners(count)
			p := pool(b, "p", wide())

			b.ReportAllocs()

			for b.Loop() {
				fill(b, network(b, p), names)
			}

			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*count), "ns/address")
		})
	}
}

// BenchmarkOne is one allocation and its release, with others in use: in a row, as they
// were given; or with holes, of which one is filled that was made at random.
func BenchmarkOne(b *testing.B) {
	const most = 1_000_000

	names := owners(most)

	for _, count := range []int{1_000, 10_000, 16_000, most} {
		b.Run(fmt.Sprintf("row/%d", count), func(b *testing.B) {
			n := network(b, pool(b, "p", wide()))
			fill(b, n, names[:count])
			runtime.GC()

			for b.Loop() {
				if _, err := n.Acquire("p", "one more"); err != nil {
					b.Fatal(err)
				}

				n.Release("one more")
			}
		})

		b.Run(fmt.Sprintf("holes/%d", count), func(b *testing.B) {
			n := network(b, pool(b, "p", wide()))
			fill(b, n, names[:count])

			for i := 0; i < count; i += 2 {
				n.Release(names[i])
			}

			random := rand.New(rand.NewPCG(1, 2))

			runtime.GC()

			for b.Loop() {
				// Somebody leaves, a newcomer gets the lowest hole, and all is as before but
				// for the place of one hole.
				leaves := names[random.IntN(count/2)*2+1]
				n.Release(leaves)

				if _, err := n.Acquire("p", leaves); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkPool is what a pool costs: a /64 no more than a /24.
func BenchmarkPool(b *testing.B) {
	for _, entry := range []string{"10.0.0.0/24", "fd00::/64"} {
		b.Run(entry, func(b *testing.B) {
			b.ReportAllocs()

			for b.Loop() {
				n := network(b, pool(b, "p", alloc.Spec{Addresses: []string{entry}}))
				if _, err := n.Acquire("p", "m"); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRebuild is the time from statuses to a network that can be used.
func BenchmarkRebuild(b *testing.B) {
	for _, count := range []int{1_000, 10_000, 100_000} {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			p := pool(b, "p", wide())
			n := network(b, p)
			fill(b, n, owners(count))
			held := n.Held()

			for b.Loop() {
				if _, err := alloc.Rebuild("net", []*alloc.Pool{p}, held); err != nil {
					b.Fatal(err)
				}
			}

			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*count), "ns/address")
		})
	}
}
