// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestFaults injects each kind of fault into a clone or a start, and checks the response and the
// remaining state.
func TestFaults(t *testing.T) {
	t.Parallel()
	const lock = "can't lock file '/var/lock/qemu-server/lock-9001.conf' - got timeout"
	for _, tc := range []struct {
		kind   pve.FaultKind
		reason string // of the fault
		status int    // 0: the connection is cut
		text   string // reason of the response or exit of the task
		vms    int
		lock   string
	}{
		{kind: pve.FaultError, status: 500, text: "got no worker upid - start worker failed"},
		{kind: pve.FaultError, reason: "boom", status: 500, text: "boom"},
		{kind: pve.FaultSlow, status: 200, text: "OK", vms: 1},
		{kind: pve.FaultLockTimeout, status: 500, text: lock},
		{kind: pve.FaultTaskLock, status: 200, text: lock},
		{kind: pve.FaultTaskError, reason: "boom", status: 200, text: "boom"},
		{kind: pve.FaultWarnings, status: 200, text: "WARNINGS: 1", vms: 1},
		{kind: pve.FaultTaskLost, status: 200, text: "unexpected status", vms: 1},
		{kind: pve.FaultTaskKilled, status: 200, text: "unexpected status"},
		{kind: pve.FaultHalfClone, status: 200, text: "unexpected status", vms: 1, lock: "clone"},
		{kind: pve.FaultCutConnection, status: 0, vms: 1},
		{kind: pve.FaultUnauthorized, status: 401, text: "Authentication failed!"},
		{kind: pve.FaultNodeDown, status: 595, text: "No route to host"},
		{kind: pve.FaultProxyTimeout, status: 596, text: "Connection timed out", vms: 1},
		{kind: pve.FaultStorageFull, status: 200,
			text: "clone failed: lvcreate 'local-lvm' error:   Cannot create new thin volume, free space in thin pool " +
				"pve/data reached threshold."},
	} {
		t.Run(string(tc.kind)+tc.reason, func(t *testing.T) {
			t.Parallel()
			a := startCluster(t, nil)
			a.s.AddFault(pve.Fault{Kind: tc.kind, Reason: tc.reason, Count: 1, Path: "/nodes/*/qemu/*/clone"})
			got, err := a.trySend("POST", clonePath, "application/x-www-form-urlencoded", strings.NewReader("newid=1000"))
			text := got.reason
			switch {
			case (err != nil) != (tc.status == 0) || got.status != tc.status:
				t.Fatalf("got %d %s, %v", got.status, got.reason, err)
			case got.status == 200:
				text = a.waitForTask(got.data)
			}
			if tc.status != 0 && text != tc.text {
				t.Errorf("text %q", text)
			}
			timing.WaitUntil(t, "VMs", func() bool { return len(a.s.Snapshot().CreatedVMs()) == tc.vms })
			timing.WaitUntil(t, "tasks", func() bool {
				st := a.s.Snapshot()
				return len(st.Tasks) == 0 || st.Tasks[len(st.Tasks)-1].Exit != ""
			})
			if tc.vms == 1 {
				if vm := a.s.Snapshot().CreatedVMs()[0]; vm.Lock != tc.lock {
					t.Errorf("lock %q", vm.Lock)
				}
			}
			if tc.vms == 0 {
				a.clone("1000", nil) // the fault is used up
			}
			if left := a.s.Faults(); len(left) != 0 {
				t.Errorf("still in force: %v", left)
			}
		})
	}
}

// TestLostTask checks the status of a lost task, whose log is lost too.
func TestLostTask(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.s.AddFault(pve.Fault{Kind: pve.FaultTaskLost})
	upid := fmt.Sprint(a.mustDo("POST", clonePath, formData{"newid": "1000"}))
	a.waitForTask(upid)
	st, _ := a.mustDo("GET", "/nodes/pve1/tasks/"+upid+"/status", nil).(map[string]any)
	if st["status"] != "stopped" || st["exitstatus"] != "unexpected status" {
		t.Errorf("status %v", st)
	}
	log, _ := a.mustDo("GET", "/nodes/pve1/tasks/"+upid+"/log", nil).([]any)
	if line, _ := log[0].(map[string]any); line["t"] != "unable to open file - No such file or directory" {
		t.Errorf("log: %v", log)
	}
}

// TestCrash ends a VM while its guest runs.
func TestCrash(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	a.s.AddFault(pve.Fault{Kind: pve.FaultVMCrash, VMID: 1000, Delay: time.Millisecond})
	a.clone("1000", nil)
	a.clone("1001", nil)
	a.mustRunTask("POST", powerPath+"start", nil)
	a.mustRunTask("POST", "/nodes/pve1/qemu/1001/status/start", nil)
	timing.WaitUntil(t, "crash", func() bool { v, _ := a.s.Snapshot().VM(1000); return v.Status == "stopped" })
	if v, _ := a.s.Snapshot().VM(1001); v.Status != "running" || v.Starts != 1 {
		t.Errorf("the other VM: %+v", v)
	}
}

// TestFaultConditions checks that rules apply only to calls that match, and at most as often as
// their count. The same seed has the same result.
func TestFaultConditions(t *testing.T) {
	t.Parallel()
	course := func() string {
		a := startCluster(t, nil)
		a.s.AddFault(pve.Fault{Kind: pve.FaultError, Method: "GET", Path: "/version", Probability: 0.5})
		var b strings.Builder
		for range 40 {
			fmt.Fprint(&b, a.do("GET", "/version", nil).status, " ")
		}
		a.mustDo("GET", "/nodes", nil)
		return b.String()
	}
	one, two := course(), course()
	if one != two || !strings.Contains(one, "200") || !strings.Contains(one, "500") {
		t.Errorf("courses\n%s\n%s", one, two)
	}
	a := startCluster(t, nil)
	remove := a.s.AddFault(pve.Fault{Kind: pve.FaultError, Node: "pve2", Status: 503, Count: 2})
	for i, want := range []int{503, 503, 200} {
		if got := a.do("GET", "/nodes/pve2/qemu", nil); got.status != want {
			t.Errorf("call %d: %d", i, got.status)
		}
		a.mustDo("GET", "/nodes/pve1/qemu", nil)
	}
	remove()
	a.s.AddFault(pve.Fault{Kind: pve.FaultError, VMID: 1000})
	if got := a.do("POST", clonePath, formData{"newid": "1000"}); got.status != 500 {
		t.Errorf("the new VM of a clone: %d", got.status)
	}
	a.clone("1001", nil)
}

func TestParseFaults(t *testing.T) {
	t.Parallel()
	got, err := pve.ParseFaults(" clone-lock=0.2, vm-crash=0.1@5s,slow=1x3@2s,half-clone")
	if err != nil {
		t.Fatal(err)
	}
	const clone = "/nodes/*/qemu/*/clone"
	want := []pve.Fault{
		{Kind: pve.FaultTaskLock, Path: clone, Probability: 0.2},
		{Kind: pve.FaultVMCrash, Probability: 0.1, Delay: 5 * time.Second},
		{Kind: pve.FaultSlow, Probability: 1, Count: 3, Delay: 2 * time.Second},
		{Kind: pve.FaultHalfClone},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{"nope=1", "slow=2", "slow=0", "slow=x", "slow=1xy", "slow=1@y"} {
		if _, err := pve.ParseFaults(bad); err == nil {
			t.Errorf("accepted %q", bad)
		}
	}
	for _, name := range pve.FaultNames() {
		if _, err := pve.ParseFaults(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	raw, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var back []pve.Fault
	if err := json.Unmarshal(raw, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, back); d != "" {
		t.Errorf("JSON: %s", d)
	}
}

// TestClientGone checks that a call continues after its client has disconnected.
func TestClientGone(t *testing.T) {
	t.Parallel()
	a := startCluster(t, nil)
	reached, leave := make(chan struct{}), make(chan struct{})
	remove := a.s.OnCall(func(c pve.Call) {
		if c.Phase == pve.PhaseBefore && strings.HasSuffix(c.Path, "/clone") {
			close(reached)
			<-leave
		}
	})
	defer remove()
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-reached; cancel() }()
	const form = "application/x-www-form-urlencoded"
	if _, err := a.trySendWithContext(ctx, "POST", clonePath, form, strings.NewReader("newid=1000")); err == nil {
		t.Fatal("the client stayed")
	}
	close(leave)
	timing.WaitUntil(t, "clone", func() bool { v, ok := a.s.Snapshot().VM(1000); return ok && v.Lock == "" })
}
