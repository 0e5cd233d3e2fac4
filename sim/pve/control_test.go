// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/control"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// TestControl reads the state of a simulator through the control API.
func TestControl(t *testing.T) {
	t.Parallel()
	m := pve.DefaultModel()
	m.Delays.Clone = 2 * time.Second
	m.VMs[0].Running = true
	s := pvetest.New(t, m)
	web := httptest.NewServer(control.Handler(s))
	t.Cleanup(web.Close)
	c := control.Client{URL: web.URL}
	ctx := t.Context()

	st, err := c.State(ctx)
	if err != nil || len(st.VMs) != 5 || st.Counts != (control.Counts{}) {
		t.Errorf("state %+v %v", st, err)
	}
	if _, err := s.AddISO("pve1", "local", "a.iso", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if st, err = c.State(ctx); err != nil || st.Counts.ISOs != 1 {
		t.Errorf("state %+v %v", st.Counts, err)
	}
	f, err := c.Floor(ctx, 12, time.Minute)
	if err != nil || f.Seconds != 64 {
		t.Errorf("floor %+v %v", f, err)
	}
	if err := c.AddFaults(ctx, pve.Fault{Kind: pve.FaultSlow, Delay: time.Second}); err != nil {
		t.Error(err)
	}
	if got := s.Faults(); len(got) != 1 || got[0].Delay != time.Second {
		t.Errorf("faults %+v", got)
	}
	if err := c.ClearFaults(ctx); err != nil || len(s.Faults()) != 0 {
		t.Errorf("faults left: %v %v", s.Faults(), err)
	}
	err = c.AddFaults(ctx, pve.Fault{Kind: pve.FaultSlow}, pve.Fault{Kind: "nope"})
	if err == nil || !strings.Contains(err.Error(), "unknown kind") || len(s.Faults()) != 0 {
		t.Errorf("a bad rule: %v, %v", err, s.Faults())
	}
	if calls, err := c.Calls(ctx); err != nil || calls.Total != 0 {
		t.Errorf("calls %+v %v", calls, err)
	}
	if v, err := c.Violations(ctx); err != nil || len(v) != 0 {
		t.Errorf("violations %v %v", v, err)
	}
	if log, err := c.Log(ctx, 1000); err != nil || log != "" {
		t.Errorf("log %q %v", log, err)
	}
	if _, err := c.Floor(ctx, -1, 0); err == nil {
		t.Error("a floor for less than no jobs")
	}
}
