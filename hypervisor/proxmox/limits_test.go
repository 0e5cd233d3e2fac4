// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// most counts what is under way, and the most that ever was.
type most struct {
	mu        sync.Mutex
	now, ever int
}

func (m *most) add(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.now += n
	m.ever = max(m.ever, m.now)
}

// saw notes how many are under way.
func (m *most) saw(n int) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.ever = max(m.ever, n)
}

func (m *most) seen() int {
	m.mu.Lock()
	defer m.mu.Unlock()

	return m.ever
}

// No more calls than allowed are under way on a node.
func TestCallsPerNodeAreBounded(t *testing.T) {
	t.Parallel()

	const calls, machines = 2, 8

	s := pvetest.New(t, fastModel())
	s.AddFault(pve.Fault{Kind: pve.FaultSlow, Path: "/nodes/*/qemu/*/config", Delay: 20 * time.Millisecond})

	var under most

	p := connect(t, s, func(c *hypervisor.Config, o *hypervisor.Options) {
		c.Nodes, c.CallsPerNode, c.ClonesPerStorage = []string{"pve1"}, calls, machines
		o.Transport = func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
				if strings.Contains(r.URL.Path, "/nodes/pve1/") {
					under.add(1)
					defer under.add(-1)
				}

				return next.RoundTrip(r)
			})
		}
	})

	makeAll(t, p, machines)

	if n := under.seen(); n != calls {
		t.Errorf("%d calls at once on one node, want %d", n, calls)
	}
}

// No more clones than allowed run on a storage.
func TestClonesPerStorageAreBounded(t *testing.T) {
	t.Parallel()

	const clones, machines = 3, 9

	m := fastModel()
	m.Limits.ClonesPerStorage = 0 // the simulator's own bound
	m.Delays.Clone = 200 * time.Millisecond

	s := pvetest.New(t, m)

	var running most

	s.OnCall(func(c pve.Call) {
		if c.Phase != pve.Before {
			return
		}

		n := 0

		for _, vm := range s.Snapshot().Made() {
			if vm.Lock == "clone" {
				n++
			}
		}

		running.saw(n)
	})

	p := connect(t, s, func(c *hypervisor.Config, _ *hypervisor.Options) {
		c.Nodes, c.ClonesPerStorage = []string{"pve1"}, clones
	})

	makeAll(t, p, machines)

	// What is seen is seen between calls: some clones, and not all, run then.
	if n := running.seen(); n < 2 || n > clones {
		t.Errorf("%d clones at once on one storage, want 2 to %d", n, clones)
	}
}

// makeAll makes so many machines side by side.
func makeAll(t *testing.T, p hypervisor.Provider, machines int) {
	t.Helper()

	var group errgroup.Group

	for n := range machines {
		group.Go(func() error {
			create(t, p, spec(n))

			return nil
		})
	}

	_ = group.Wait()
}

// A machine that somebody has given to the HA manager is refused, in words, and stays.
func TestMachinesOfTheHAManagerAreRefused(t *testing.T) {
	t.Parallel()

	s := pvetest.New(t, fastModel())

	p := connect(t, s, func(_ *hypervisor.Config, o *hypervisor.Options) {
		o.Transport = func(next http.RoundTripper) http.RoundTripper {
			return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
				res, err := next.RoundTrip(r)
				if err != nil || !strings.HasSuffix(r.URL.Path, "/cluster/resources") {
					return res, err
				}

				defer res.Body.Close()

				body, err := io.ReadAll(res.Body)
				if err != nil {
					return nil, err
				}

				// As PVE::API2::Cluster has it of what the HA manager looks after.
				body = bytes.ReplaceAll(body, []byte(`"type":"qemu"`), []byte(`"type":"qemu","hastate":"started"`))
				res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
				res.Header.Del("Content-Length")

				return res, nil
			})
		}
	})

	_, sp := create(t, p, spec(1))

	var err error

	eventually(t, "it is refused or gone", func() bool {
		err = p.Delete(t.Context(), refOf(sp))

		return hypervisor.Is(err, hypervisor.Rejected) || hypervisor.Is(err, hypervisor.NotFound)
	})

	says(t, err, hypervisor.Rejected, "ha-manager remove vm:")

	if n := len(s.Snapshot().Made()); n != 1 {
		t.Errorf("%d machines are left, want 1", n)
	}
}
