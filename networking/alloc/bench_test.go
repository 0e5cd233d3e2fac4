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
	tb.Helper()

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

// BenchmarkAcquire is one allocation with others in use: in a row, as they were given,
// or with a hole at every other address, of which the lowest is filled. BenchmarkChurn
// is one with a release of some other machine's at random.
func BenchmarkAcquire(b *testing.B) {
	const batch = 400

	names := owners(most)
	newcomers := make([]string, batch)

	for i := range newcomers {
		newcomers[i] = "newcomer-" + strconv.Itoa(i)
	}

	for _, count := range counts() {
		for _, holes := range []bool{false, true} {
			b.Run(fmt.Sprintf("holes=%v/%d", holes, count), func(b *testing.B) {
				n := used(b, names[:count], holes)

				for done := 0; done < b.N; done += batch {
					now := newcomers[:min(batch, b.N-done)]
					fill(b, n, now)
					b.StopTimer()

					for _, name := range now {
						n.Release(name)
					}

					b.StartTimer()
				}
			})
		}
	}
}

func BenchmarkChurn(b *testing.B) {
	names := owners(most)

	for _, count := range counts() {
		b.Run(strconv.Itoa(count), func(b *testing.B) {
			n := used(b, names[:count], true)
			random := rand.New(rand.NewPCG(1, 2))

			for b.Loop() {
				moves := names[random.IntN(count/2)*2+1]
				n.Release(moves)

				if _, err := n.Acquire("p", moves); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// most is the largest of counts, which are how many addresses have been given.
const most = 1_000_000

func counts() []int { return []int{1_000, 10_000, 16_000, most} }

// used is a network with addresses in use; with holes, every other one was released.
func used(b *testing.B, names []string, holes bool) *alloc.Network {
	b.Helper()

	n := network(b, pool(b, "p", wide()))
	fill(b, n, names)

	for i := 0; holes && i < len(names); i += 2 {
		n.Release(names[i])
	}

	runtime.GC()
	b.ResetTimer()

	return n
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
