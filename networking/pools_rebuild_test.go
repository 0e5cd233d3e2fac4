// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/hyperfleet/hyperfleet/networking/alloc"
	"github.com/hyperfleet/hyperfleet/networking/pools"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/scrape"
)

var errAPI = errors.New("the API server is unavailable")

// The source is synced when the address registry is filled, after any number of attempts. The registry has
// nothing from failed attempts.
func TestRebuildSourceSyncsAfterRebuild(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		b, tries := pools.New(), 0
		b.AddReaders(func(_ context.Context, b *pools.AddressRegistry) error {
			tries++
			if tries < 3 {
				setPool(t, b, newPool(t, blue, "stale", "10.0.0.0/24"))

				return errAPI
			}

			setPool(t, b, newPool(t, blue, "p", "10.0.0.0/24"))

			return b.Restore(blue, alloc.Assignment{Owner: "a", Pool: "p", Address: netip.MustParsePrefix("10.0.0.1/8")})
		})

		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()

		one, two := b.RebuildSource(clock.RealClock{}), b.RebuildSource(clock.RealClock{})

		if err := b.Check(nil); err != nil {
			t.Errorf("a process that stands by is not ready: %v", err)
		}

		must.Do(t, one.Start(ctx, nil))

		synctest.Wait()

		if err := b.Check(nil); !errors.Is(err, pools.ErrNotRebuilt) || b.IsReady() {
			t.Errorf("ready before the address registry is filled: %v", err)
		}

		for _, rebuild := range []interface {
			WaitForSync(ctx context.Context) error
		}{one, two} {
			must.Do(t, rebuild.WaitForSync(ctx))
		}

		must.Do(t, two.Start(ctx, nil))

		synctest.Wait()

		if b.Check(nil) != nil || !b.IsReady() || tries != 3 {
			t.Errorf("%d attempts", tries)
		}

		requireEqual(t, "the lowest free address after a rebuild", acquireAddresses(t, b, &wakeRecorder{}, "p", "b"), "[10.0.0.2/8]")
	})
}

func TestRebuildSourceGivesUpWithItsContext(t *testing.T) {
	t.Parallel()

	synctest.Test(t, func(t *testing.T) {
		b := pools.New()
		b.AddReaders(func(context.Context, *pools.AddressRegistry) error { return errAPI })

		ctx, cancel := context.WithCancel(t.Context())
		rebuild := b.RebuildSource(clock.RealClock{})

		must.Do(t, rebuild.Start(ctx, nil))

		cancel()

		if err := rebuild.WaitForSync(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
}

// gatedManager is a manager whose reader lists nothing before the gate is open.
type gatedManager struct {
	ctrl.Manager

	gate <-chan struct{}
}

// GetAPIReader returns the reader.
func (m gatedManager) GetAPIReader() client.Reader {
	return gatedReader{m.Manager.GetAPIReader(), m.gate}
}

type gatedReader struct {
	client.Reader

	gate <-chan struct{}
}

// List waits until the gate is open.
func (r gatedReader) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	select {
	case <-r.gate:
		return r.Reader.List(ctx, list, opts...)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// No controller that uses the address registry reconciles anything before the registry is filled.
func TestControllersWaitForTheAddresses(t *testing.T) { //nolint:paralleltest // it counts the reconciles of the process
	w := &fixture{t: t, namespace: env.Namespace(t)}
	w.createPool(w.newNodePool("workers", 1, "10.0.1.10-10.0.1.19"))
	w.createTemplate("small", w.createCluster("c", nil), "other", "10.0.0.10-10.0.0.11")
	w.must(env.Client.Create(t.Context(), newMachine(w.namespace, "workers", "a")))
	w.must(env.Client.Create(t.Context(), newMachineClaim(w.namespace, "b", "small")))

	controllers := []string{"kubevirtmachine", "kubevirtnodepool", "claimaddress", "addresspool"}
	reconciles := func(name string) float64 { // those that have ended, and those that have not
		label := fmt.Sprintf("controller=%q", name)

		return scrape.SumOf(t, metrics.Registry, "controller_runtime_reconcile_total", label) +
			scrape.SumOf(t, metrics.Registry, "controller_runtime_active_workers", label)
	}
	requests := func(name string) float64 {
		return scrape.SumOf(t, metrics.Registry, "workqueue_adds_total", fmt.Sprintf("controller=%q", name))
	}
	reconciled, requested := map[string]float64{}, map[string]float64{}

	for _, name := range controllers {
		reconciled[name], requested[name] = reconciles(name), requests(name)
	}

	gate := make(chan struct{})
	w.wrapManager = func(mgr ctrl.Manager) ctrl.Manager { return gatedManager{mgr, gate} }
	w.startWithCleanup()

	for _, name := range controllers {
		w.waitUntil(name+" has a request", func() bool { return requests(name) > requested[name] })
	}

	// A controller that does not wait reconciles its request within milliseconds.
	for range 20 {
		for _, name := range controllers {
			if n := reconciles(name) - reconciled[name]; n > 0 {
				t.Fatalf("%s has reconciled %.0f times before the addresses are known", name, n)
			}
		}

		time.Sleep(pollInterval)
	}

	close(gate)

	for _, name := range controllers {
		w.waitUntil(name+" reconciles", func() bool { return reconciles(name) > reconciled[name] })
	}
}

// Owners that waited before a restart are served before new owners, even if they call Acquire later.
func TestWaitingOwnersAreServedFirstAfterRestart(t *testing.T) {
	t.Parallel()

	b, w := pools.New(), &wakeRecorder{}
	b.AddReaders(func(_ context.Context, b *pools.AddressRegistry) error {
		setPool(t, b, newPool(t, blue, "p", "10.0.0.1/32"))

		if err := b.Restore(blue, alloc.Assignment{Owner: "has", Pool: "p", Address: netip.MustParsePrefix("10.0.0.1/8")}); err != nil {
			return err
		}

		b.RestoreWaiting(blue, "p", "has")
		b.RestoreWaiting(blue, "p", "waits")
		b.RestoreWaiting(blue, "p", "waits")

		return nil
	})

	must.Do(t, b.Rebuild(t.Context()))

	if status, _ := b.Status("p"); status.Waiting != 1 {
		t.Errorf("%d owners wait", status.Waiting)
	}

	requireEqual(t, "one that comes later", acquireAddresses(t, b, w, "p", "new"), "")
	b.Release("has")
	requireEqual(t, "it requests first", acquireAddresses(t, b, w, "p", "new"), "")
	requireEqual(t, "the one whose turn it is", acquireAddresses(t, b, w, "p", "waits"), "[10.0.0.1/8]")

	b.Release("waits")
	requireEqual(t, "then the other", acquireAddresses(t, b, w, "p", "new"), "[10.0.0.1/8]")

	// A restored waiting owner can be removed like any other owner.
	b.RestoreWaiting(blue, "p", "gone")
	b.StopWaiting("gone")
	b.Release("new")
	requireEqual(t, "the next", acquireAddresses(t, b, w, "p", "next"), "[10.0.0.1/8]")
}

func TestMetricsOfPools(t *testing.T) {
	t.Parallel()

	b := pools.New()
	setPool(t, b, newPool(t, blue, "p", "10.0.0.10/32", "fd00::10-fd00::11"))
	acquireAddresses(t, b, &wakeRecorder{}, "p", "a")
	acquireAddresses(t, b, &wakeRecorder{}, "p", "b")

	want := `
# HELP hyperfleet_ippool_free Number of free addresses of a family in a pool.
# TYPE hyperfleet_ippool_free gauge
hyperfleet_ippool_free{family="IPv4",network="default/blue",pool="p"} 0
hyperfleet_ippool_free{family="IPv6",network="default/blue",pool="p"} 1
# HELP hyperfleet_ippool_size Number of addresses of a family in a pool.
# TYPE hyperfleet_ippool_size gauge
hyperfleet_ippool_size{family="IPv4",network="default/blue",pool="p"} 1
hyperfleet_ippool_size{family="IPv6",network="default/blue",pool="p"} 2
# HELP hyperfleet_ippool_waiting Number of machines that wait for an address of a pool.
# TYPE hyperfleet_ippool_waiting gauge
hyperfleet_ippool_waiting{network="default/blue",pool="p"} 1
`
	if err := testutil.CollectAndCompare(pools.NewCollector(b), strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// BenchmarkRebuild restores the machines of one pool. The ratio is the time for 100,000 machines divided by
// the time for 1,000 machines. It is 100 if a rebuild is linear.
func BenchmarkRebuild(b *testing.B) {
	const small, large = 1_000, 100_000

	once := func(n int) float64 {
		addresses := pools.New()
		addresses.AddReaders(func(_ context.Context, addresses *pools.AddressRegistry) error {
			setPool(b, addresses, newPool(b, blue, "p", "10.0.0.0/8"))

			addr := netip.MustParseAddr("10.0.0.1")
			for i := range n {
				held := alloc.Assignment{Owner: fmt.Sprintf("ns/m%d/uid", i), Pool: "p", Address: netip.PrefixFrom(addr, 8)}
				if err := addresses.Restore(blue, held); err != nil {
					return err
				}

				addr = addr.Next()
			}

			return nil
		})

		begun := clock.RealClock{}.Now()

		must.Do(b, addresses.Rebuild(b.Context()))

		return clock.RealClock{}.Since(begun).Seconds()
	}

	var few, many float64
	for b.Loop() {
		for range large / small {
			few += once(small) / (large / small)
		}

		many += once(large)
	}

	b.ReportMetric(many/few, "x-for-100x-machines")
}
