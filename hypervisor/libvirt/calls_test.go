// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
)

// A machine costs at most ten calls of its own from its placement to its deletion.
func TestCallsPerMachine(t *testing.T) {
	t.Parallel()

	// Lists are shared by all machines and made at intervals, so their number depends on the time.
	const (
		machines = 5
		budget   = 10
	)

	isShared := map[string]bool{"listDomains": true, "readMetadata": true, "readPool": true, "readVolume": true}

	s := newSite(t)

	var (
		mu    sync.Mutex
		calls = map[string]int{}
		total int
	)

	p, err := libvirt.New(s.config, hypervisor.Options{
		OperatorUID: "operator",
		WrapCall: func(_ context.Context, call hypervisor.Call, do func() error) error {
			mu.Lock()
			calls[call.Operation]++

			if !isShared[call.Operation] {
				total++
			}

			mu.Unlock()

			return do()
		},
	})
	s.must(err)
	t.Cleanup(p.Close)

	for n := range machines {
		spec := hypervisor.MachineSpec{
			Owner:    hypervisor.Owner{Namespace: "ci", Name: fmt.Sprint("claim-", n), UID: fmt.Sprint("uid-", n)},
			Template: hypervisor.TemplateRef{Name: template}, Shape: hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true},
		}

		_, err := conformance.Create(t.Context(), p, &spec, newSeed)
		s.must(err)

		// The operator asks often while a guest powers off.
		ref := hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner, PowerOffReported: true}

		for range 5 {
			_, err := p.Get(t.Context(), ref)
			s.must(err)
		}

		s.powerOff(spec.ID)

		for {
			m, err := p.Get(t.Context(), ref)
			s.must(err)

			if m.State == hypervisor.StateStopped {
				break
			}
		}

		s.must(conformance.Delete(t.Context(), p, ref))
	}

	mu.Lock()
	defer mu.Unlock()

	if total > machines*budget {
		t.Errorf("%d machines cost %d calls of their own, want at most %d: %v", machines, total, machines*budget, calls)
	}

	t.Logf("%d machines: %v", machines, calls)
}
