// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// callsPerMachine is the maximum number of calls that a machine may need over its whole life.
const callsPerMachine = 10

// fleet handles machines as a controller does: a machine is reconciled when its owner is woken.
type fleet struct {
	p     hypervisor.Provider
	wakes map[string]chan struct{}
}

func newFleet(tb testing.TB, s *pve.Server, machines int, o func(*hypervisor.Options)) *fleet {
	tb.Helper()

	f := &fleet{wakes: map[string]chan struct{}{}}
	for n := range machines {
		f.wakes[newSpec(n+1).Owner.UID] = make(chan struct{}, 1)
	}

	f.p = connect(tb, s, func(_ *hypervisor.Config, opts *hypervisor.Options) {
		opts.Wake = f.wake
		o(opts)
	})

	return f
}

func (f *fleet) wake(o hypervisor.Owner) {
	select {
	case f.wakes[o.UID] <- struct{}{}:
	default:
	}
}

// runLife takes one machine through its lifecycle.
func (f *fleet) runLife(ctx context.Context, s hypervisor.MachineSpec) error {
	until := func(do func() (bool, error)) error {
		for {
			ready, err := do()
			if err != nil && !conformance.IsTransient(err) {
				return err
			}

			if ready {
				return nil
			}

			select {
			case <-f.wakes[s.Owner.UID]:
			case <-time.After(time.Second):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}

	reserved, err := f.p.Reserve(ctx, s)
	if err != nil {
		return err
	}

	s.ID, s.Node = reserved.ID, reserved.Node
	ref := hypervisor.MachineRef{ID: s.ID, Owner: s.Owner}

	err = until(func() (bool, error) {
		m, err := f.p.Start(ctx, s, seed)
		// A short life may end before a reconcile.
		started := m.State == hypervisor.StateRunning || m.State == hypervisor.StateStopped

		return started && err == nil, err
	})
	if err != nil {
		return err
	}

	err = until(func() (bool, error) {
		m, err := f.p.Get(ctx, ref)

		return m.State == hypervisor.StateStopped && err == nil, err
	})
	if err != nil {
		return err
	}

	return until(func() (bool, error) {
		err := f.p.Delete(ctx, ref)

		return hypervisor.Is(err, hypervisor.NotFound), nil
	})
}

var (
	machinePath = regexp.MustCompile(`^/nodes/[^/]+/qemu/(1\d{5})`)
	uidInPath   = regexp.MustCompile(`content/.*-(\d{12})\.iso$`)
)

// sumCalls counts the calls by machine. The paths of clones and uploads have no machine ID, so these calls
// are counted separately. Lists and task polls are shared calls.
func sumCalls(s *pve.Server) (byMachine map[string]int, clones, uploads, shared int) {
	byMachine = map[string]int{}

	for _, c := range s.Calls() {
		switch {
		case c.Method == http.MethodPost && strings.HasSuffix(c.Path, "/clone"):
			clones++
		case strings.HasSuffix(c.Path, "/upload"):
			uploads++
		case strings.Contains(c.Path, "/agent/"):
			// The number of requests for the address depends on how long the machine runs, so they are not
			// counted.
		case machinePath.MatchString(c.Path):
			byMachine[machinePath.FindStringSubmatch(c.Path)[1]]++
		case c.Method == http.MethodDelete && uidInPath.MatchString(c.Path):
			byMachine[isoKey(c.Path)]++
		default:
			shared++
		}
	}

	return byMachine, clones, uploads, shared
}

// listCalls returns the calls for one machine in their order.
func listCalls(s *pve.Server, id string) []string {
	var calls []string

	for _, c := range s.Calls() {
		if m := machinePath.FindStringSubmatch(c.Path); len(m) > 1 && m[1] == id {
			calls = append(calls, c.Method+" "+c.Path)
		}
	}

	return calls
}

func isoKey(path string) string { return "iso " + uidInPath.FindStringSubmatch(path)[1] }

func TestCallsPerMachine(t *testing.T) {
	t.Parallel()

	cases := []struct {
		name string
		disk int64
	}{
		{"the template's disk", 0},
		{"a grown disk", 50 * gib},
	}

	const machines = 12

	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()

			m := fastModel()
			m.Delays.Clone = 20 * time.Millisecond
			m.Guest = pve.Guest{Kind: pve.GuestScript, StayUp: 100 * time.Millisecond}

			s := pvetest.New(t, m)
			f := newFleet(t, s, machines, func(*hypervisor.Options) {})

			runFleet(t, f, machines, c.disk)

			byMachine, clones, uploads, _ := sumCalls(s)
			if clones != machines || uploads != machines {
				t.Errorf("%d clones and %d uploads for %d machines", clones, uploads, machines)
			}

			for id, calls := range byMachine {
				if strings.HasPrefix(id, "iso ") {
					continue
				}

				// One clone, one upload and one deletion of the ISO are added.
				if total := calls + 3; total > callsPerMachine {
					t.Errorf("machine %s cost %d calls: %v", id, total, listCalls(s, id))
				}
			}

			expectNothingLeft(t, s)
		})
	}
}

// The number of the shared calls of a connection does not grow from two machines to twenty.
func TestSharedCallsDoNotGrow(t *testing.T) {
	t.Parallel()

	count := func(machines int) int {
		m := fastModel()
		m.Limits.ClonesPerStorage = 0

		s := pvetest.New(t, m)
		p := connect(t, s, func(c *hypervisor.Config, o *hypervisor.Options) {
			c.ClonesPerStorage = machines
			o.Clock, o.TaskInterval, o.ListInterval = clock.RealClock{}, time.Hour, time.Hour
		})

		for n := range machines {
			sp := reserve(t, p, newSpec(n+1))
			if _, err := p.Start(t.Context(), sp, seed); err != nil {
				t.Fatal(err)
			}

			if _, err := p.Get(t.Context(), newRef(sp)); err != nil {
				t.Fatal(err)
			}
		}

		if _, err := p.List(t.Context()); err != nil {
			t.Fatal(err)
		}

		_, _, _, shared := sumCalls(s)

		return shared
	}

	if few, lots := count(2), count(20); few != lots {
		t.Errorf("2 machines cost %d shared calls, 20 cost %d", few, lots)
	}
}

func runFleet(tb testing.TB, f *fleet, machines int, disk int64) {
	tb.Helper()

	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()

	var wg sync.WaitGroup

	for n := range machines {
		wg.Go(func() {
			sp := newSpec(n + 1)
			sp.Shape.Disk = disk

			if err := f.runLife(ctx, sp); err != nil {
				tb.Error(fmt.Errorf("machine %d: %w", n+1, err))
			}
		})
	}

	wg.Wait()
}

// BenchmarkBurst runs 50 machines at once on three nodes. It prints the cost of one machine, and the
// difference between the makespan and the shortest makespan that the delays allow.
func BenchmarkBurst(b *testing.B) {
	const (
		machines = 50
		scale    = 4
		clone    = 2 * time.Second / scale
		boot     = 3 * time.Second / scale
		job      = 2 * time.Second / scale
	)

	for b.Loop() {
		m := fastModel()
		m.Delays.Clone, m.Delays.Boot = clone, boot

		var (
			mu   sync.Mutex
			last time.Time
		)

		m.Guest = pve.Guest{Kind: pve.GuestScript, Script: func(vm pve.GuestVM) {
			select {
			case <-time.After(job):
			case <-vm.Context.Done():
			}

			mu.Lock()
			defer mu.Unlock()

			last = time.Now()
		}}

		s := pvetest.New(b, m)
		f := newFleet(b, s, machines, func(o *hypervisor.Options) {
			o.Clock, o.TaskInterval, o.ListInterval = clock.RealClock{}, 250*time.Millisecond/scale, 2*time.Second/scale
		})

		start := time.Now()

		runFleet(b, f, machines, 0)

		cleaned := time.Since(last)

		byMachine, clones, uploads, shared := sumCalls(s)
		own := clones + uploads

		for _, n := range byMachine {
			own += n
		}

		floor := pve.Floor(s.FloorInput(machines, job))

		b.ReportMetric(float64(own)/machines, "calls/VM")
		b.ReportMetric(float64(shared)/machines, "shared-calls/VM")
		b.ReportMetric(last.Sub(start).Seconds()*scale, "makespan-s")
		b.ReportMetric(cleaned.Seconds()*scale, "cleanup-s")
		b.ReportMetric(last.Sub(start).Seconds()/floor.Seconds(), "ratio")
	}
}
