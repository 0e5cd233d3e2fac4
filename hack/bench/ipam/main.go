// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command ipam measures networking/alloc and github.com/metal-stack/go-ipam in one run,
// side by side and in memory both, and prints how many times faster the former is. It is
// a module of its own so that go-ipam is none of the product's dependencies.
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
	flag.Parse()

	if err := run(*count); err != nil {
		fmt.Fprintln(os.Stderr, "ipam:", err)
		os.Exit(1)
	}
}

func run(count int) error {
	fmt.Printf("%-34s %14s %14s %10s\n", "", "alloc", "go-ipam", "ratio")

	names := make([]string, count+singles)
	for i := range names {
		names[i] = "machine-" + strconv.Itoa(i)
	}

	ours, err := fillOurs(names[:count])
	if err != nil {
		return err
	}

	network, err := newOurs(names[:0])
	if err != nil {
		return err
	}

	theirs, err := newTheirs()
	if err != nil {
		return err
	}

	var filled time.Duration

	done := 0

	// One fill of go-ipam serves all lines: single acquires are measured on the way,
	// and given back.
	for _, at := range []int{1_000, 10_000, count} {
		if at > count || at <= done {
			continue
		}

		begun := time.Now()

		if err := theirs.acquire(at - done); err != nil {
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

		theirOne, err := theirs.one()
		if err != nil {
			return err
		}

		line(fmt.Sprintf("one more with %d in use", at), ourOne, theirOne)
	}

	line(fmt.Sprintf("filling %d addresses", count), ours, filled)

	return nil
}

func line(what string, ours, theirs time.Duration) {
	fmt.Printf("%-34s %14s %14s %9.0fx\n", what, ours, theirs, float64(theirs)/float64(ours))
}

func newOurs(names []string) (*alloc.Network, error) {
	pool, err := alloc.NewPool("p", alloc.Spec{Addresses: []string{prefix}})
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
		if _, err := newOurs(names); err != nil {
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
