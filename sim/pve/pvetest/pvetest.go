// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pvetest

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// New starts a cluster on a free loopback port and closes it when the test ends. The test fails if a
// client made a call that no correct client makes, or if a guest's process outlives the cluster.
func New(t testing.TB, m pve.Model, opts ...pve.Option) *pve.Server {
	t.Helper()
	return Listen(t, m, pve.ListenOptions{}, opts...)
}

// Listen is like New, with an address and client certificates.
func Listen(t testing.TB, m pve.Model, l pve.ListenOptions, opts ...pve.Option) *pve.Server {
	t.Helper()
	s, err := pve.New(m, opts...)
	if err != nil {
		t.Fatalf("build cluster: %v", err)
	}
	if err := s.Start(l); err != nil {
		t.Fatalf("start cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close cluster: %v", err)
		}
		for _, g := range s.LeakedProcesses() {
			t.Errorf("pve: processes of a guest outlived the cluster (group %d)", g)
		}
		for _, v := range s.Violations() {
			t.Errorf("pve: violation: %s: %s %s", v.Message, v.Call.Method, v.Call.Path)
		}
	})
	return s
}
