// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package libvirt_test

import (
	"context"
	"sync"
	"testing"
	"time"

	golibvirt "github.com/digitalocean/go-libvirt"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/hypervisor/conformance"
	"github.com/hyperfleet/hyperfleet/hypervisor/libvirt"
)

// A machine whose guest does not tell its address is asked more and more rarely, and the first time when it has run for 20
// seconds. Nothing else changes for it.
func TestAddressIsAskedRarely(t *testing.T) {
	t.Parallel()

	const (
		list  = 10 * time.Second
		steps = 60
	)

	var (
		mu    sync.Mutex
		calls = map[string]int{}
	)

	count := func(name string) int {
		mu.Lock()
		defer mu.Unlock()

		return calls[name]
	}

	s := newSite(t)
	clk := clocktesting.NewFakeClock(time.Now())
	p, err := libvirt.New(s.config, hypervisor.Options{
		OperatorUID: "operator", Clock: clk,
		WrapCall: func(_ context.Context, call hypervisor.Call, do func() error) error {
			err := do()

			mu.Lock()
			defer mu.Unlock()

			calls[call.Operation]++

			return err
		},
	})
	s.must(err)
	t.Cleanup(p.Close)

	spec := hypervisor.MachineSpec{
		Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim", UID: "uid"},
		Template: hypervisor.TemplateRef{Name: template}, Shape: hypervisor.Shape{CPU: 1, Memory: 64 * mebibyte, Linked: true},
	}

	_, err = conformance.Create(t.Context(), p, &spec, newSeed)
	s.must(err)

	var readAt []int

	for step := range steps {
		before := count("listDomains")

		clk.Step(list)
		s.eventually("the domains are listed", func() bool { return count("listDomains") > before })
		time.Sleep(5 * time.Millisecond) // the question follows the list

		if count("readAddress") > len(readAt) {
			readAt = append(readAt, step)
		}
	}

	if len(readAt) < 3 || len(readAt) > 7 || readAt[0] < 2 {
		t.Errorf("asked for the address in the steps %v of %s each", readAt, list)
	}

	m, err := p.Get(t.Context(), hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner})
	if err != nil || m.State != hypervisor.StateRunning || m.IP != "" {
		t.Errorf("the machine is %s with address %q (%v)", m.State, m.IP, err)
	}

	s.must(conformance.Delete(t.Context(), p, hypervisor.MachineRef{ID: spec.ID, Owner: spec.Owner}))
}

// A lease counts for the interface of the machine only.
func TestSelectLease(t *testing.T) {
	t.Parallel()

	found := []golibvirt.DomainInterface{
		{Name: "vnet1", Hwaddr: golibvirt.OptString{"52:54:00:00:00:02"}, Addrs: []golibvirt.DomainIPAddr{{Addr: "192.168.122.7"}}},
		{Name: "vnet0", Hwaddr: golibvirt.OptString{"52:54:00:00:00:01"}, Addrs: []golibvirt.DomainIPAddr{{Addr: "192.168.122.8"}}},
	}

	if got := libvirt.SelectLease(found, "52:54:00:00:00:01"); got != "192.168.122.8" {
		t.Errorf("got %q", got)
	}

	if got := libvirt.SelectLease(found, "52:54:00:00:00:03"); got != "" {
		t.Errorf("a machine without a lease has %q", got)
	}
}
