// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// TestTaskLife: running, then stopped with an exit status and a log.
func TestTaskLife(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))
	a := start(t, func(m *pve.Model) { m.Delays.Clone = time.Minute }, pve.WithClock(clk))
	upid := fmt.Sprint(a.ok("POST", clonePath, p{"newid": "1000"}))
	form := regexp.MustCompile(`^UPID:pve1:[0-9A-F]{8}:[0-9A-F]{8}:6553F100:qmclone:9001:hyperfleet@pve!operator:$`)
	if !form.MatchString(upid) {
		t.Errorf("UPID %s", upid)
	}
	path := "/nodes/pve1/tasks/" + url.PathEscape(upid)
	status := func() map[string]any { m, _ := a.ok("GET", path+"/status", nil).(map[string]any); return m }
	if st := status(); st["status"] != "running" || st["exitstatus"] != nil || st["user"] != "hyperfleet@pve" ||
		st["tokenid"] != "operator" || st["id"] != "9001" {
		t.Errorf("running: %v", st)
	}
	active, _ := a.ok("GET", "/nodes/pve1/tasks", p{"source": "active"}).([]any)
	if len(active) != 1 {
		t.Errorf("active: %v", active)
	}
	eventually(t, "copying", func() bool { return clk.HasWaiters() })
	clk.Step(time.Minute)
	a.wait(upid)
	if st := status(); st["status"] != "stopped" || st["exitstatus"] != "OK" {
		t.Errorf("stopped: %v", st)
	}
	log, _ := a.ok("GET", path+"/log", p{"start": "0", "limit": "50"}).([]any)
	last, _ := log[len(log)-1].(map[string]any)
	if last["t"] != "TASK OK" || last["n"] != float64(len(log)) {
		t.Errorf("log: %v", log)
	}
	if got := a.do("GET", "/nodes/pve2/tasks/"+upid+"/status", nil); got.status != 400 {
		t.Errorf("asked on another node: %d", got.status)
	}
}

// TestTasksOfOthers need Sys.Audit to be seen.
func TestTasksOfOthers(t *testing.T) {
	t.Parallel()
	a := start(t, func(m *pve.Model) {
		m.Users = append(m.Users, pve.User{ID: "u@pve"})
		m.Tokens = append(m.Tokens, pve.Token{ID: "u@pve!t", Secret: "s", NoPrivSep: true})
	})
	root, u := a.root(), a.token("u@pve!t", "s")
	upid := fmt.Sprint(root.ok("POST", clonePath, p{"newid": "1000"}))
	a.wait(upid)
	a.ok("GET", "/nodes/pve1/tasks/"+upid+"/status", nil) // has Sys.Audit on /nodes
	if got := u.do("GET", "/nodes/pve1/tasks/"+upid+"/status", nil); got.reason != "Permission check failed (/nodes/pve1, Sys.Audit)" {
		t.Errorf("status: %d %s", got.status, got.reason)
	}
	if got := a.do("DELETE", "/nodes/pve1/tasks/"+upid, nil); got.status != 403 {
		t.Errorf("stopped somebody else's task: %d", got.status)
	}
	for who, want := range map[*api]int{root: 1, a: 0, u: 0} {
		if l, _ := who.ok("GET", "/cluster/tasks", nil).([]any); len(l) != want {
			t.Errorf("list: %v, want %d", l, want)
		}
	}
}

// TestWorkers: a node handles so many calls at a time; the next one waits.
func TestWorkers(t *testing.T) {
	t.Parallel()
	clk := clocktesting.NewFakeClock(time.Now())
	a := start(t, func(m *pve.Model) { m.Limits.WorkersPerNode = 1; m.Delays.Agent = time.Hour }, pve.WithClock(clk))
	a.clone("1000", nil)
	a.must("POST", powerPath+"start", nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { a.do("POST", "/nodes/pve1/qemu/1000/agent/ping", nil) })
	eventually(t, "first call", func() bool { return clk.Waiters() == 1 })
	got := make(chan answer)
	go func() { got <- a.do("GET", "/nodes/pve1/qemu", nil) }()
	eventually(t, "second call", func() bool { return clk.Waiters() == 2 })
	a.ok("GET", "/nodes/pve2/qemu", nil) // other nodes have workers of their own
	clk.Step(3 * time.Second)
	if g := <-got; g.status != 200 {
		t.Errorf("after waiting: %d", g.status)
	}
}

// TestManyAtOnce: clones, starts, stops and deletions of many clients leave a
// consistent cluster.
func TestManyAtOnce(t *testing.T) {
	t.Parallel()
	a := start(t, func(m *pve.Model) {
		m.Delays = pve.Delays{Clone: time.Millisecond, Boot: time.Millisecond}
		m.Guest = pve.Guest{Kind: pve.GuestScript, StayUp: time.Millisecond}
	})
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			node, id := i%3+1, 1000+i
			base := fmt.Sprintf("/nodes/pve%d/qemu/%d", node, id)
			a.must("POST", fmt.Sprintf("/nodes/pve%d/qemu/%d/clone", node, 9000+node), p{"newid": strconv.Itoa(id), "pool": "ci"})
			a.ok("PUT", base+"/config", p{"tags": "x"})
			a.must("POST", base+"/status/start", nil)
			a.ok("GET", "/cluster/resources", p{"type": "vm"})
			a.must("POST", base+"/status/stop", nil)
			a.must("DELETE", base, p{"purge": "1"})
		})
	}
	wg.Wait()
	if left := a.s.Snapshot().Made(); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
}
