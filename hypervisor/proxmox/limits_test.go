// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// maxCounter counts running operations and keeps the maximum.
type maxCounter struct {
	mu               sync.Mutex
	current, highest int
}

func (m *maxCounter) add(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.current += n
	m.highest = max(m.highest, m.current)
}

// record records the number of running operations.
func (m *maxCounter) record(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.highest = max(m.highest, n)
}

func (m *maxCounter) maximum() int {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.highest
}

// A node gets no more parallel calls than the limit allows.
func TestCallsPerNodeAreBounded(t *testing.T) {
	t.Parallel()

	const calls, machines = 2, 8

	s := pvetest.New(t, fastModel())
	s.AddFault(pve.Fault{Kind: pve.FaultSlow, Path: "/nodes/*/qemu/*/config", Delay: 20 * time.Millisecond})

	var under maxCounter

	p := connect(t, s, func(c *hypervisor.Config, o *hypervisor.Options) {
		c.Nodes, c.CallsPerNode, c.ClonesPerStorage = []string{"pve1"}, calls, machines
		o.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				if strings.Contains(r.URL.Path, "/nodes/pve1/") {
					under.add(1)
					defer under.add(-1)
				}

				return next.RoundTrip(r)
			})
		}
	})

	createAll(t, p, machines)

	if n := under.maximum(); n != calls {
		t.Errorf("%d calls at once on one node, want %d", n, calls)
	}
}

// A storage gets no more parallel clones than the limit allows.
func TestClonesPerStorageAreBounded(t *testing.T) {
	t.Parallel()

	const clones, machines = 3, 9

	m := fastModel()
	m.Limits.ClonesPerStorage = 0 // the limit of the simulator
	m.Delays.Clone = 200 * time.Millisecond

	s := pvetest.New(t, m)

	var running maxCounter

	s.OnCall(func(c pve.Call) {
		if c.Phase != pve.PhaseBefore {
			return
		}

		n := 0

		for _, vm := range s.Snapshot().CreatedVMs() {
			if vm.Lock == "clone" {
				n++
			}
		}

		running.record(n)
	})

	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) {
		c.Nodes, c.ClonesPerStorage = []string{"pve1"}, clones
	})

	createAll(t, p, machines)

	// The count is taken between calls, so it may be less than the limit.
	if n := running.maximum(); n < 2 || n > clones {
		t.Errorf("%d clones at once on one storage, want 2 to %d", n, clones)
	}
}

// createAll creates a number of machines in parallel.
func createAll(t *testing.T, p hypervisor.Provider, machines int) {
	t.Helper()

	var group errgroup.Group

	for n := range machines {
		group.Go(func() error {
			create(t, p, newSpec(n))

			return nil
		})
	}

	_ = group.Wait()
}

// A machine that a user has added to the HA manager is not deleted, and the error names the reason.
func TestMachinesOfHAManagerAreRejected(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())

	var isRemoved atomic.Bool

	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) {
		o.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				res, err := next.RoundTrip(r)
				if err != nil || !strings.HasSuffix(r.URL.Path, "/cluster/resources") || isRemoved.Load() {
					return res, err
				}

				defer res.Body.Close()

				body, err := io.ReadAll(res.Body)
				if err != nil {
					return nil, err
				}

				// PVE::API2::Cluster writes the field hastate for machines that the HA manager manages.
				body = bytes.ReplaceAll(body, []byte(`"type":"qemu"`), []byte(`"type":"qemu","hastate":"started"`))
				res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
				res.Header.Del("Content-Length")

				return res, nil
			})
		}
	})

	_, sp := create(t, p, newSpec(1))

	var err error

	timing.WaitUntil(t, "the deletion is refused, or the machine is deleted", func() bool {
		err = p.Delete(t.Context(), newRef(sp))

		return hypervisor.Is(err, hypervisor.Rejected) || hypervisor.Is(err, hypervisor.NotFound)
	})

	requireError(t, err, hypervisor.Rejected, fmt.Sprintf("ha-manager remove vm:%d", sp.ID))

	if n := len(s.Snapshot().CreatedVMs()); n != 1 {
		t.Errorf("%d machines are left, want 1", n)
	}

	isRemoved.Store(true)

	// The provider sees the removal in its next list of machines.
	timing.WaitUntil(t, "the machine is deleted", func() bool {
		return hypervisor.Is(p.Delete(t.Context(), newRef(sp)), hypervisor.NotFound)
	})
}
