// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/test/progress"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

const (
	operatorUID = "e2e00000-0000-4000-8000-000000000001"
	claimUID    = "c1a10000-0000-4000-8000-000000000001"
	// patience decides nothing but how long a life that hangs is waited for.
	patience = 3 * time.Minute
	// requeue is when a controller comes again unasked.
	requeue = time.Second
)

// life is that of one machine, from the id reserved for it until nothing of it is left. It
// may outlive the processes that lead it: what it keeps is what stands in the claim.
type life struct {
	*testing.T

	part  *realpve.Part
	spec  hypervisor.MachineSpec
	woken chan struct{}
	// patience is how long each thing may take.
	patience time.Duration
	// onWake is called each time the provider wakes the owner; nil for nothing.
	onWake func()
}

func newLife(t *testing.T, site *realpve.Site) *life {
	t.Helper()

	return &life{
		T: t, part: site.NewPart(t), woken: make(chan struct{}, 1), patience: patience,
		spec: hypervisor.MachineSpec{
			Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim", UID: claimUID, Pool: "pool"},
			Hostname: "claim", Template: hypervisor.TemplateRef{ID: site.Template}, Shape: shape(),
		},
	}
}

// process is a provider, as a process of the operator has one. Transport may be nil.
func (l *life) process(transport func(http.RoundTripper) http.RoundTripper) hypervisor.Connection {
	l.Helper()

	return l.part.Connect(l.T, hypervisor.Options{OperatorUID: operatorUID, WrapTransport: transport, Wake: func(hypervisor.Owner) {
		if l.onWake != nil {
			l.onWake()
		}

		select {
		case l.woken <- struct{}{}:
		default:
		}
	}})
}

// until calls do, as a controller does: when it is woken, and now and then, until it is done.
func (l *life) until(ctx context.Context, what string, do func(context.Context) (bool, error)) error {
	l.Helper()

	ctx, cancel := context.WithTimeout(ctx, l.patience)
	defer cancel()

	ticker := time.NewTicker(requeue)
	defer ticker.Stop()

	for {
		done, err := do(ctx)
		if done {
			return nil
		}

		if ctx.Err() != nil || !passing(err) {
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		case <-l.woken:
		case <-ticker.C:
		}
	}
}

// passing tells whether a controller would try again. Whatever else is a verdict on the
// machine, and on a Proxmox VE where nobody interferes it is wrong.
func passing(err error) bool {
	switch hypervisor.KindOf(err) {
	case hypervisor.Busy, hypervisor.UnknownOutcome, hypervisor.Unavailable, "":
		return true
	default:
		return false
	}
}

// make has the machine made until it runs, or is held.
func (l *life) make(ctx context.Context, p hypervisor.Provider) error {
	l.Helper()

	return l.until(ctx, "make machine", func(ctx context.Context) (bool, error) {
		if l.spec.ID == 0 {
			reserved, err := p.Reserve(ctx, l.spec)
			l.spec.ID, l.spec.Node = reserved.ID, reserved.Node

			if err != nil {
				return false, err
			}
		}

		if l.spec.Standby {
			m, err := p.Ensure(ctx, l.spec)

			return err == nil && m.State == hypervisor.StatePrepared, err
		}

		m, err := p.Start(ctx, l.spec, func(context.Context) (hypervisor.Seed, error) {
			return hypervisor.Seed{UserData: []byte("#cloud-config\n{}\n"), MetaData: []byte("instance-id: " + claimUID + "\n")}, nil
		})

		return err == nil && m.State == hypervisor.StateRunning, err
	})
}

// remove has it deleted until nothing is left.
func (l *life) remove(ctx context.Context, p hypervisor.Provider) error {
	l.Helper()

	return l.until(ctx, "delete machine", func(ctx context.Context) (bool, error) {
		err := p.Delete(ctx, hypervisor.MachineRef{ID: l.spec.ID, Owner: l.spec.Owner})

		return hypervisor.Is(err, hypervisor.NotFound), err
	})
}

// runs makes sure that there is the machine of the reserved id, and no other, and that it was
// started once.
func (l *life) runs() {
	l.Helper()

	state := l.part.Inspect()
	if len(state.Machines) != 1 {
		l.Fatalf("want one machine, there are %+v", state.Machines)
	}

	if m := state.Machines[0]; m.ID != l.spec.ID || m.ClaimUID != claimUID || m.OperatorUID != operatorUID || !m.Running || m.Starts != 1 {
		l.Errorf("want machine %d of the claim running, started once; there is %+v", l.spec.ID, m)
	}
}

func (l *life) nothingLeft() {
	l.Helper()

	if state := l.part.Inspect(); len(state.Machines)+len(state.Seeds) > 0 {
		l.Errorf("left behind: machines %+v, cloud-init ISOs %v", state.Machines, state.Seeds)
	}
}

// A machine lives and is gone, each change is asked for once, and what that took is told.
func TestLife(t *testing.T) {
	site := realpve.GetSite(t)
	l := newLife(t, site)
	m := newMeter(t, site)
	l.onWake = m.wake

	p := l.process(m.transport)
	defer p.Close()

	info, err := p.Check(t.Context())
	if err != nil || len(info.Warnings) > 0 {
		t.Errorf("check: %v, warnings %q", err, info.Warnings)
	}

	if _, err := p.Resolve(t.Context(), l.spec.Template, l.spec.Shape); err != nil {
		t.Fatal(err)
	}

	m.begin()

	if err := l.make(t.Context(), p); err != nil {
		t.Fatal(err)
	}

	m.event("runs")
	l.runs()
	m.event("is deleted")

	if err := l.remove(t.Context(), p); err != nil {
		t.Fatal(err)
	}

	m.event("is gone")
	l.nothingLeft()

	say := progress.NewPrinter(t)
	say("%s", m.table())

	if unlike := slices.DeleteFunc(m.changes(), func(s string) bool { return strings.HasSuffix(s, " 1") }); len(unlike) > 0 {
		t.Errorf("want each change asked for once, got %v", unlike)
	}
}

// Machines that live at once share what is asked for all: what each takes then is told.
func TestLivesAtOnce(t *testing.T) {
	const machines = 12

	site := realpve.GetSite(t)

	long(t)

	lives := map[string]*life{}
	one := newLife(t, site)

	for n := range machines {
		l := *one
		l.woken = make(chan struct{}, 1)
		l.spec.Owner.Name = fmt.Sprintf("claim-%d", n)
		l.spec.Owner.UID = fmt.Sprintf("%s%03d", claimUID[:len(claimUID)-3], n)
		l.spec.Hostname = l.spec.Owner.Name
		lives[l.spec.Owner.UID] = &l
	}

	var mu sync.Mutex

	calls, all := map[string]int{}, 0

	p := one.part.Connect(t, hypervisor.Options{
		OperatorUID: operatorUID,
		WrapTransport: func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(req *http.Request) (*http.Response, error) {
				mu.Lock()
				calls[classOf(req)]++
				all++
				mu.Unlock()

				return next.RoundTrip(req)
			})
		},
		Wake: func(owner hypervisor.Owner) {
			select {
			case lives[owner.UID].woken <- struct{}{}:
			default:
			}
		},
	})
	defer p.Close()

	var wg sync.WaitGroup

	for _, l := range lives {
		wg.Go(func() {
			if err := errors.Join(l.make(t.Context(), p), l.remove(t.Context(), p)); err != nil {
				t.Errorf("%s: %v", l.spec.Owner.Name, err)
			}
		})
	}

	wg.Wait()
	one.nothingLeft()
	progress.NewPrinter(t)("%d machines at once: %.1f calls each, with all that they share: %v", machines, float64(all)/machines, calls)
}
