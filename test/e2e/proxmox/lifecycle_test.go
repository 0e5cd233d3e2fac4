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
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/test/progress"
	"github.com/hyperfleet/hyperfleet/test/realpve"
)

const (
	operatorUID = "e2e00000-0000-4000-8000-000000000001"
	claimUID    = "c1a10000-0000-4000-8000-000000000001"
	// waitTimeout only limits how long a hanging test runs.
	waitTimeout = 3 * time.Minute
	// requeueInterval is the interval at which a controller reconciles without an event.
	requeueInterval = time.Second
)

// lifecycle is the lifecycle of one machine, from its reserved ID until nothing is left of it. It can continue
// in several processes of the operator, because its state is only what a claim stores.
type lifecycle struct {
	*testing.T

	part  *realpve.Part
	spec  hypervisor.MachineSpec
	wakes chan struct{}
	// timeout limits each operation.
	timeout time.Duration
	// onWake, if set, is called each time the provider wakes the owner.
	onWake func()
}

func newLifecycle(t *testing.T, site *realpve.Site) *lifecycle {
	t.Helper()

	return &lifecycle{
		T: t, part: site.NewPart(t), wakes: make(chan struct{}, 1), timeout: waitTimeout,
		spec: hypervisor.MachineSpec{
			Owner:    hypervisor.Owner{Namespace: "ci", Name: "claim", UID: claimUID, Pool: "pool"},
			Hostname: "claim", Template: hypervisor.TemplateRef{ID: site.Template}, Shape: newShape(),
		},
	}
}

// connect returns a provider as a process of the operator has one. transport may be nil.
func (l *lifecycle) connect(transport func(http.RoundTripper) http.RoundTripper) hypervisor.Connection {
	l.Helper()

	return l.part.Connect(l.T, hypervisor.Options{OperatorUID: operatorUID, WrapTransport: transport, Wake: func(hypervisor.Owner) {
		if l.onWake != nil {
			l.onWake()
		}

		select {
		case l.wakes <- struct{}{}:
		default:
		}
	}})
}

// waitUntil calls do until it is done, as a controller does: after each wake, and at intervals.
func (l *lifecycle) waitUntil(ctx context.Context, what string, do func(context.Context) (bool, error)) error {
	l.Helper()

	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()

	ticker := time.NewTicker(requeueInterval)
	defer ticker.Stop()

	for {
		done, err := do(ctx)
		if done {
			return nil
		}

		if ctx.Err() != nil || !isTransient(err) {
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		}

		select {
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", what, errors.Join(ctx.Err(), err))
		case <-l.wakes:
		case <-ticker.C:
		}
	}
}

// isTransient returns whether a controller would retry. On a Proxmox VE that nothing else uses, every other
// error is unexpected.
func isTransient(err error) bool {
	switch hypervisor.KindOf(err) {
	case hypervisor.Busy, hypervisor.UnknownOutcome, hypervisor.Unavailable, "":
		return true
	default:
		return false
	}
}

// createMachine creates the machine until it runs, or until it is prepared as a standby.
func (l *lifecycle) createMachine(ctx context.Context, p hypervisor.Provider) error {
	l.Helper()

	return l.waitUntil(ctx, "create machine", func(ctx context.Context) (bool, error) {
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

// deleteMachine deletes the machine until nothing is left.
func (l *lifecycle) deleteMachine(ctx context.Context, p hypervisor.Provider) error {
	l.Helper()

	return l.waitUntil(ctx, "delete machine", func(ctx context.Context) (bool, error) {
		err := p.Delete(ctx, hypervisor.MachineRef{ID: l.spec.ID, Owner: l.spec.Owner})

		return hypervisor.Is(err, hypervisor.NotFound), err
	})
}

// requireRunning checks that exactly the machine with the reserved ID exists, and that it was started once.
func (l *lifecycle) requireRunning() {
	l.Helper()

	state := l.part.Inspect()
	if len(state.Machines) != 1 {
		l.Fatalf("want one machine, got %+v", state.Machines)
	}

	if m := state.Machines[0]; m.ID != l.spec.ID || m.ClaimUID != claimUID || m.OperatorUID != operatorUID || !m.Running || m.Starts != 1 {
		l.Errorf("want machine %d of the claim running, started once; got %+v", l.spec.ID, m)
	}
}

func (l *lifecycle) requireNothingLeft() {
	l.Helper()

	if state := l.part.Inspect(); len(state.Machines)+len(state.Seeds) > 0 {
		l.Errorf("left behind: machines %+v, cloud-init ISOs %v", state.Machines, state.Seeds)
	}
}

// A machine is created and deleted with one call for each change. The test prints the durations.
func TestLifecycle(t *testing.T) {
	site := realpve.GetSite(t)
	l := newLifecycle(t, site)
	m := newMeter(t, site)
	l.onWake = m.addWake

	p := l.connect(m.wrapTransport)
	defer p.Close()

	info, err := p.Check(t.Context())
	if err != nil || len(info.Warnings) > 0 {
		t.Errorf("check: %v, warnings %q", err, info.Warnings)
	}

	if _, err := p.Resolve(t.Context(), l.spec.Template, l.spec.Shape); err != nil {
		t.Fatal(err)
	}

	m.reset()

	if err := l.createMachine(t.Context(), p); err != nil {
		t.Fatal(err)
	}

	m.addEvent("runs")
	l.requireRunning()
	m.addEvent("is deleted")

	if err := l.deleteMachine(t.Context(), p); err != nil {
		t.Fatal(err)
	}

	m.addEvent("is gone")
	l.requireNothingLeft()

	say := progress.NewPrinter(t)
	say("%s", m.formatTable())

	if unlike := slices.DeleteFunc(m.listChanges(), func(s string) bool { return strings.HasSuffix(s, " 1") }); len(unlike) > 0 {
		t.Errorf("want each change asked for once, got %v", unlike)
	}
}

// Machines that run at the same time share calls. The test prints the durations for each machine.
func TestParallelLifecycles(t *testing.T) {
	const machines = 12

	site := realpve.GetSite(t)

	skipIfShort(t)

	lives := map[string]*lifecycle{}
	one := newLifecycle(t, site)

	for n := range machines {
		l := *one
		l.wakes = make(chan struct{}, 1)
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
			return retry.RoundTripperFunc(func(req *http.Request) (*http.Response, error) {
				mu.Lock()
				calls[findClass(req)]++
				all++
				mu.Unlock()

				return next.RoundTrip(req)
			})
		},
		Wake: func(owner hypervisor.Owner) {
			select {
			case lives[owner.UID].wakes <- struct{}{}:
			default:
			}
		},
	})
	defer p.Close()

	var wg sync.WaitGroup

	for _, l := range lives {
		wg.Go(func() {
			if err := errors.Join(l.createMachine(t.Context(), p), l.deleteMachine(t.Context(), p)); err != nil {
				t.Errorf("%s: %v", l.spec.Owner.Name, err)
			}
		})
	}

	wg.Wait()
	one.requireNothingLeft()
	progress.NewPrinter(t)("%d machines at once: %.1f calls each, with all that they share: %v", machines, float64(all)/machines, calls)
}
