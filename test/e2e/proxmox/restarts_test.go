// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"errors"
	"net/http"
	"regexp"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

var errKilled = errors.New("the process was killed")

// trap kills a process at a call. The call takes effect, its response is lost, and all later calls fail.
type trap struct {
	call *regexp.Regexp
	kill context.CancelFunc

	mu       sync.Mutex
	isSprung bool
}

func (r *trap) wrapTransport(next http.RoundTripper) http.RoundTripper {
	return retry.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
		if r.hasKilled() {
			return nil, errKilled
		}

		res, err := next.RoundTrip(req)
		if err != nil || res.StatusCode != http.StatusOK || !r.call.MatchString(req.Method+" "+req.URL.Path) {
			return res, err // the call may have had no effect on a busy node
		}

		_ = res.Body.Close() // the response is lost

		r.mu.Lock()
		r.isSprung = true
		r.mu.Unlock()
		r.kill()

		return nil, errKilled
	})
}

func (r *trap) hasKilled() bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.isSprung
}

// runAndKill runs a function with a new provider, and kills its process at the call.
func (l *lifecycle) runAndKill(call string, do func(context.Context, hypervisor.Provider) error) {
	l.Helper()

	ctx, cancel := context.WithCancel(l.Context())
	defer cancel()

	r := &trap{call: regexp.MustCompile(call), kill: cancel}

	p := l.connect(r.wrapTransport)
	err := do(ctx, p)
	p.Close()

	if !r.hasKilled() {
		l.Fatalf("the call %s was not made: %v", call, err)
	}
}

// run runs a function with a new provider until it returns.
func (l *lifecycle) run(do func(context.Context, hypervisor.Provider) error) {
	l.Helper()

	p := l.connect(nil)
	defer p.Close()

	if err := do(l.Context(), p); err != nil {
		l.Fatal(err)
	}
}

// cleanUp deletes the machine, and checks that nothing is left.
func (l *lifecycle) cleanUp() {
	l.Helper()
	l.run(l.deleteMachine)
	l.requireNothingLeft()
}

// The operator's process is killed during a change, and a new process continues with the state in the claim:
// with the same machine, which is started once, and of which nothing is left.
func TestRestarts(t *testing.T) {
	t.Parallel()

	site := realpve.GetSite(t)

	skipIfShort(t)

	creating := []struct {
		name, call string
		standby    bool
	}{
		{name: "a standby's ISO is uploaded", call: `^POST .*/upload$`, standby: true},
		{name: "the machine is configured", call: `^PUT .*/config$`},
		{name: "the machine is started", call: `^POST .*/status/start$`},
	}
	deleting := []struct{ name, call string }{
		{"the machine is stopped", `^POST .*/status/stop$`},
		{"the machine is destroyed", `^DELETE .*/qemu/\d+$`},
		{"its ISO is deleted", `^DELETE .*/content/`},
	}

	for _, row := range creating {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			l := newLifecycle(t, site)

			if l.spec.Standby = row.standby; row.standby {
				l.run(l.createMachine)

				l.spec.Standby = false
			}

			l.runAndKill(row.call, l.createMachine)
			l.run(l.createMachine)
			l.requireRunning()
			l.cleanUp()
		})
	}

	for _, row := range deleting {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			l := newLifecycle(t, site)
			l.run(l.createMachine)
			l.requireRunning()
			l.runAndKill(row.call, l.deleteMachine)
			l.cleanUp()
		})
	}
}

// The same during a clone, which takes minutes for a large template. The name of its task is that of the
// template. If permissions are granted on the pool, Proxmox VE shows the machine to the operator only after
// the clone.
func TestRestartsDuringClone(t *testing.T) {
	t.Parallel()

	site := realpve.GetSite(t)

	if site.SlowTemplate == 0 {
		t.Skip("PVE_SLOW_TEMPLATE names no template whose clone takes a while")
	}

	for _, row := range []struct {
		name, call string
		removed    bool
	}{
		{name: "the clone is requested", call: `^POST .*/clone$`},
		{name: "its ISO is uploaded", call: `^POST .*/upload$`},
		{name: "its task is polled", call: `^GET .*/tasks`},
		{name: "the clone is requested, and then its claim is deleted", call: `^POST .*/clone$`, removed: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			l := killDuringClone(t, site, row.call)

			if !row.removed {
				l.run(l.createMachine)
				l.requireRunning()
			}

			l.cleanUp()
		})
	}
}

// killDuringClone returns a lifecycle whose process was killed at the call while the clone ran. On a busy
// machine the clone may have ended already. Then it tries again with another lifecycle.
func killDuringClone(t *testing.T, site *realpve.Site, call string) *lifecycle {
	t.Helper()

	const tries = 5

	for range tries {
		l := newLifecycle(t, site)
		l.spec.Template.ID, l.spec.Shape.Linked = site.SlowTemplate, false
		l.runAndKill(call, l.createMachine)

		if l.part.Lock(l.spec.ID) == "clone" {
			return l
		}

		l.cleanUp()
	}

	t.Fatalf("in %d lifecycles the clone had ended when the process was killed", tries)

	return nil
}
