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
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

var errKilled = errors.New("the process was killed")

// trap kills a process at a call: it takes effect, its answer is lost, and nothing is called
// any more.
type trap struct {
	call *regexp.Regexp
	kill context.CancelFunc

	mu     sync.Mutex
	sprung bool
}

func (r *trap) transport(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if r.over() {
			return nil, errKilled
		}

		res, err := next.RoundTrip(req)
		if err != nil || res.StatusCode != http.StatusOK || !r.call.MatchString(req.Method+" "+req.URL.Path) {
			return res, err // a busy node may have done nothing
		}

		_ = res.Body.Close() // nobody is there to read it

		r.mu.Lock()
		r.sprung = true
		r.mu.Unlock()
		r.kill()

		return nil, errKilled
	})
}

func (r *trap) over() bool {
	r.mu.Lock()
	defer r.mu.Unlock()

	return r.sprung
}

// killed has a process do something, and kills it at the call.
func (l *life) killed(call string, do func(context.Context, hypervisor.Provider) error) {
	l.Helper()

	ctx, cancel := context.WithCancel(l.Context())
	defer cancel()

	r := &trap{call: regexp.MustCompile(call), kill: cancel}

	p := l.process(r.transport)
	err := do(ctx, p)
	p.Close()

	if !r.over() {
		l.Fatalf("it never came to %s: %v", call, err)
	}
}

// in has a process do something to its end.
func (l *life) in(do func(context.Context, hypervisor.Provider) error) {
	l.Helper()

	p := l.process(nil)
	defer p.Close()

	if err := do(l.Context(), p); err != nil {
		l.Fatal(err)
	}
}

// ends removes the machine.
func (l *life) ends() {
	l.Helper()
	l.in(l.remove)
	l.nothingLeft()
}

// The operator's process is killed when a change is under way, and a new one goes on with what
// stands in the claim: with the same machine, started once, and with nothing left of it.
func TestRestarts(t *testing.T) {
	t.Parallel()

	site := realpve.GetSite(t)

	long(t)

	making := []struct {
		name, call string
		held       bool
	}{
		{name: "a held machine's ISO is uploaded", call: `^POST .*/upload$`, held: true},
		{name: "it is configured", call: `^PUT .*/config$`},
		{name: "it is started", call: `^POST .*/status/start$`},
	}
	removing := []struct{ name, call string }{
		{"it is stopped", `^POST .*/status/stop$`},
		{"it is destroyed", `^DELETE .*/qemu/\d+$`},
		{"its ISO is deleted", `^DELETE .*/content/`},
	}

	for _, row := range making {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			l := newLife(t, site)

			if l.spec.Standby = row.held; row.held {
				l.in(l.make)

				l.spec.Standby = false
			}

			l.killed(row.call, l.make)
			l.in(l.make)
			l.runs()
			l.ends()
		})
	}

	for _, row := range removing {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			l := newLife(t, site)
			l.in(l.make)
			l.runs()
			l.killed(row.call, l.remove)
			l.ends()
		})
	}
}

// The same while the clone runs, which takes minutes where templates are large. Its task is
// the template's by its name, and with grants by pool Proxmox VE shows the machine to the
// operator only when the clone has ended.
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
		{name: "the clone is asked for", call: `^POST .*/clone$`},
		{name: "its ISO is uploaded", call: `^POST .*/upload$`},
		{name: "its task is looked at", call: `^GET .*/tasks`},
		{name: "the clone is asked for, and then its claim is deleted", call: `^POST .*/clone$`, removed: true},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()

			l := killedDuringClone(t, site, row.call)

			if !row.removed {
				l.in(l.make)
				l.runs()
			}

			l.ends()
		})
	}
}

// killedDuringClone gives a life whose process was killed at the call, while the clone ran. On a
// busy machine the clone may be over by then: that life says nothing, and is lived once more.
func killedDuringClone(t *testing.T, site *realpve.Site, call string) *life {
	t.Helper()

	const tries = 5

	for range tries {
		l := newLife(t, site)
		l.spec.Template.ID, l.spec.Shape.Linked = site.SlowTemplate, false
		l.killed(call, l.make)

		if l.part.Lock(l.spec.ID) == "clone" {
			return l
		}

		l.ends()
	}

	t.Fatalf("in %d lives the clone was over when the process was killed", tries)

	return nil
}
