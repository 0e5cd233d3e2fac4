// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// fleet has the machines of one pool, as their controller handles them. recorded is at the API server.
// addresses is in memory and lost with the process.
type fleet struct {
	t         testing.TB
	addresses *pools.AddressRegistry
	recorded  map[string]netip.Prefix
	// running has the addresses in use: their VirtualMachines exist.
	running map[netip.Addr]string
}

func newFleet(t testing.TB) *fleet {
	t.Helper()

	f := &fleet{t: t, recorded: map[string]netip.Prefix{}, running: map[netip.Addr]string{}}
	f.restart()

	return f
}

// restart starts a new process.
func (f *fleet) restart() {
	f.addresses = pools.New()
	f.addresses.AddReaders(func(_ context.Context, b *pools.AddressRegistry) error {
		setPool(f.t, b, newPool(f.t, blue, "p", "10.0.0.10-10.0.0.17"))

		for owner, address := range f.recorded {
			if err := b.Restore(blue, alloc.Assignment{Owner: owner, Pool: "p", Address: address}); err != nil {
				return err
			}
		}

		return nil
	})

	must.Do(f.t, f.addresses.Rebuild(f.t.Context()))
}

// step does one action with one machine, and returns what is wrong after it.
func (f *fleet) step(n int) string {
	owner := fmt.Sprintf("m%d", n%13)

	switch n / 13 % 8 {
	case 0, 1, 2: // a reconcile without errors
		return f.allocate(owner, true, true)
	case 3: // the write succeeds, and its response is lost: the machine is not created yet
		return f.allocate(owner, true, false)
	case 4: // the write is lost
		return f.allocate(owner, false, false)
	case 5, 6: // the machine is deleted, in the controller's order
		if at, found := f.recorded[owner]; found {
			delete(f.running, at.Addr())
		}

		delete(f.recorded, owner)
		f.addresses.Release(owner)
	default:
		f.restart()
	}

	return ""
}

func (f *fleet) allocate(owner string, written, made bool) string {
	if at, found := f.recorded[owner]; found {
		if made {
			f.running[at.Addr()] = owner
		}

		return ""
	}

	got, err := f.addresses.Acquire(pools.Request{Network: blue, Pool: "p", Owner: owner})

	var exhausted *alloc.ExhaustedError

	switch {
	case errors.As(err, &exhausted):
		return ""
	case err != nil:
		return err.Error()
	}

	for other, at := range f.recorded {
		if at.Addr() == got[0].Addr() {
			return fmt.Sprintf("%s got %s, which is recorded for %s", owner, got[0], other)
		}
	}

	if written {
		f.recorded[owner] = got[0]
	}

	if made {
		if other, taken := f.running[got[0].Addr()]; taken {
			return fmt.Sprintf("%s got %s, with which %s runs", owner, got[0], other)
		}

		f.running[got[0].Addr()] = owner
	}

	return ""
}

// genSteps generates a list of numbers below a limit. Each number is one action.
func genSteps(least, most, limit int) gopter.Gen {
	numbers := gen.SliceOf(gen.IntRange(0, limit-1))

	return func(parameters *gopter.GenParameters) *gopter.GenResult {
		sized := *parameters
		sized.MinSize, sized.MaxSize = least, most

		return numbers(&sized)
	}
}

// Feature: hyperfleet-operator, Property: an address has one owner, over lost writes and restarts
//
// Machines are created and deleted in any order, writes of statuses are lost, and the process crashes at
// any time. No machine gets an address that another machine has recorded or runs with, and all addresses
// are free after the last machine is deleted.
func TestPropertyOneOwner(t *testing.T) {
	t.Parallel()

	property.Check(t, "one owner", property.Options{Runs: 300}, prop.ForAll(func(steps []int) string {
		f := newFleet(t)

		for _, n := range steps {
			if wrong := f.step(n); wrong != "" {
				return wrong
			}
		}

		for i := range 13 {
			owner := fmt.Sprintf("m%d", i)
			delete(f.recorded, owner)
			f.addresses.Release(owner)
		}

		if status, _ := f.addresses.Status("p"); status.CountAllocatable() != 8 {
			return fmt.Sprintf("%d of 8 addresses are free at the end", status.CountAllocatable())
		}

		return ""
	}, genSteps(20, 300, 13*8)))
}
