// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Harness is one fresh hypervisor for one case, or a part of one that nobody else uses: with
// ids of its own and another name of the cluster, so that nothing of other cases is its
// operators'.
type Harness struct {
	// Connect makes a provider, as a new process would.
	Connect func(tb testing.TB, options hypervisor.Options) hypervisor.Connection
	// Template that machines can be made from, and a shape that fits.
	Template hypervisor.TemplateRef
	Shape    hypervisor.Shape
	// TPMTemplate is one whose machines had a TPM when it was made into a template; empty where
	// the hypervisor gives machines no TPM.
	TPMTemplate hypervisor.TemplateRef
	// IDMin is the lowest id that is given.
	IDMin int
	// PlacesAtStart says that the hypervisor chooses a machine's node when it starts it: no
	// node is known before.
	PlacesAtStart bool
	// NamesHoldOwner says that what names a machine holds its owner besides its id: another
	// owner's reference with the same id names nothing.
	NamesHoldOwner bool
	// RealTime says that the hypervisor keeps its own time, as a real one does: providers get
	// the real clock and their own intervals.
	RealTime bool
	// TPMsHidden says that Inspect can't tell TPMs apart: cases about them are skipped.
	TPMsHidden bool
	// Inspect tells what is on the hypervisor now.
	Inspect func() State
	// OnCall has f run for each call that reaches the hypervisor, before and after its
	// effect; the call waits for f. Only Crashes needs it.
	OnCall func(f func(Boundary)) (remove func())
	// PowerOff lets a machine's guest power off.
	PowerOff func(id int)
	// Occupy puts somebody else's machine on an id.
	Occupy func(tb testing.TB, id int)
	// Vanish removes a machine behind the provider's back; its cloud-init ISO stays.
	Vanish func(tb testing.TB, id int)
}

// Boundary is a moment of a call.
type Boundary struct {
	// Before its effect, or after it and before the answer.
	Before bool
	// Write says that the call changes something.
	Write bool
	// What names the call.
	What string
}

// State is what really is on the hypervisor.
type State struct {
	// Machines that were not there from the start.
	Machines []Seen
	// Seeds are the cloud-init ISOs and Secrets that are there.
	Seeds []string
	// TPMs are those of templates.
	TPMs []string
	// Foreign stands for everything that was there from the start: any change of it
	// changes the text.
	Foreign string
}

// Seen is a machine as it really is.
type Seen struct {
	ID int
	// ClaimUID and OperatorUID that it carries.
	ClaimUID, OperatorUID string
	Running               bool
	// Starts counts how often it was started.
	Starts int
	// TPM stands for the seeds of its TPM: of two machines with the same one each could pass
	// for the other. Empty without a TPM.
	TPM string
}

// New makes the harness of a case.
type New func(t *testing.T) Harness

// Operators of the cases.
const (
	operatorA = "aaaaaaaa-0000-4000-8000-000000000001"
	operatorB = "bbbbbbbb-0000-4000-8000-000000000002"
)

const (
	// patience bounds what a case waits for. It decides nothing but how long a broken
	// provider is waited for.
	patience = 3 * time.Minute
	// pause between two looks.
	pause = 20 * time.Millisecond
)

// env is one case with what it needs.
type env struct {
	*testing.T
	Harness

	clock   clock.WithTicker
	foreign string

	mu    sync.Mutex
	wakes map[string]int
}

func newEnv(t *testing.T, fresh New) *env {
	t.Helper()

	e := &env{T: t, Harness: fresh(t), wakes: map[string]int{}}

	if !e.RealTime {
		e.clock = FastClock(t, Speed)
	}

	e.foreign = e.Inspect().Foreign

	return e
}

func (e *env) options(operator string) hypervisor.Options {
	options := hypervisor.Options{OperatorUID: operator, Wake: e.wake}
	if !e.RealTime {
		options.TaskInterval, options.ListInterval, options.Clock = Speed*pause, Speed*pause, e.clock
	}

	return options
}

func (e *env) wake(o hypervisor.Owner) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.wakes[o.UID]++
}

func (e *env) woken(uid string) int {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.wakes[uid]
}

// connect makes a provider that lives as long as the case.
func (e *env) connect(operator string) hypervisor.Connection {
	e.Helper()

	conn := e.Connect(e.T, e.options(operator))
	e.Cleanup(conn.Close)

	return conn
}

// claim is what a controller keeps of a machine: its spec, with the id once reserved.
type claim struct {
	spec hypervisor.MachineSpec
	// cloud-init ISOs counts how often the cloud-init ISO was asked for.
	seed int
}

func (e *env) claim(n int) *claim {
	name := fmt.Sprintf("claim-%d", n)

	return &claim{spec: hypervisor.MachineSpec{
		Owner: hypervisor.Owner{
			Namespace: "ci", Name: name, UID: fmt.Sprintf("c0000000-0000-4000-8000-%012d", n), Pool: "pool",
		},
		Hostname: name, Template: e.Template, Shape: e.Shape,
	}}
}

func (c *claim) ref() hypervisor.MachineRef {
	return hypervisor.MachineRef{ID: c.spec.ID, Owner: c.spec.Owner}
}

func (c *claim) makeSeed(context.Context) (hypervisor.Seed, error) {
	c.seed++

	return hypervisor.Seed{
		UserData: []byte("#cloud-config\n{}\n"), MetaData: []byte("instance-id: " + c.spec.Owner.UID + "\n"),
	}, nil
}

// Further does the next thing that a controller does: it reserves an id and writes it down,
// and then has the machine made, and started unless it is to wait.
func Further(
	ctx context.Context, p hypervisor.Provider, s *hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	switch {
	case s.ID == 0:
		reserved, err := p.Reserve(ctx, *s)
		if err == nil {
			s.ID, s.Node = reserved.ID, reserved.Node
		}

		return hypervisor.Machine{}, err
	case s.Standby:
		return p.Ensure(ctx, *s)
	default:
		return p.Start(ctx, *s, seed)
	}
}

func (c *claim) further(ctx context.Context, p hypervisor.Provider) (hypervisor.Machine, error) {
	return Further(ctx, p, &c.spec, c.makeSeed)
}

// Create does what a controller does until the machine runs, has run, or is held: it writes the
// reserved id down, comes again while the provider waits, and takes another id where
// its own is another's.
func Create(
	ctx context.Context, p hypervisor.Provider, s *hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	deadline := time.Now().Add(patience)

	for {
		m, err := Further(ctx, p, s, seed)

		switch {
		case ctx.Err() != nil:
			return m, ctx.Err()
		case hypervisor.Is(err, hypervisor.IDTaken):
			s.ID, s.Node = 0, ""
		case err != nil && !Passing(err):
			return m, err
		case err == nil && (m.State == hypervisor.StateRunning || m.State == hypervisor.StateStopped):
			return m, nil
		case err == nil && s.Standby && m.State == hypervisor.StatePrepared:
			return m, nil
		}

		if time.Now().After(deadline) {
			return m, fmt.Errorf("create machine of %s: still %s (%s): %w", s.Owner.Name, m.State, m.Message, err)
		}

		time.Sleep(pause)
	}
}

func create(ctx context.Context, p hypervisor.Provider, c *claim) (hypervisor.Machine, error) {
	return Create(ctx, p, &c.spec, c.makeSeed)
}

// Remove does what a controller does until nothing is left.
func Remove(ctx context.Context, p hypervisor.Provider, ref hypervisor.MachineRef) error {
	deadline := time.Now().Add(patience)

	for {
		err := p.Delete(ctx, ref)

		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case hypervisor.Is(err, hypervisor.NotFound):
			return nil
		case err != nil && !Passing(err):
			return err
		}

		if time.Now().After(deadline) {
			return fmt.Errorf("delete machine of %s: %w", ref.Owner.Name, err)
		}

		time.Sleep(pause)
	}
}

// Passing tells whether an error asks to try again.
func Passing(err error) bool {
	switch hypervisor.KindOf(err) {
	case hypervisor.Busy, hypervisor.UnknownOutcome, hypervisor.Unavailable, hypervisor.NoCapacity, "":
		return true
	default:
		return false
	}
}

func (e *env) mustCreate(p hypervisor.Provider, c *claim) hypervisor.Machine {
	e.Helper()

	m, err := create(e.Context(), p, c)
	if err != nil {
		e.Fatal(err)
	}

	return m
}

func (e *env) mustRemove(p hypervisor.Provider, c *claim) {
	e.Helper()

	if err := Remove(e.Context(), p, c.ref()); err != nil {
		e.Fatal(err)
	}
}

// eventually waits for something to come true.
func (e *env) eventually(what string, ok func() bool) {
	e.Helper()

	deadline := time.Now().Add(patience)
	for !ok() {
		if time.Now().After(deadline) {
			e.Fatalf("never came true: %s", what)
		}

		time.Sleep(pause)
	}
}

// nothingLeft makes sure that no machine and no cloud-init ISO is left and that nothing of
// anybody else's was touched.
func (e *env) nothingLeft() {
	e.Helper()

	state := e.Inspect()
	if len(state.Machines)+len(state.Seeds) > 0 {
		e.Errorf("left behind: machines %+v, cloud-init ISOs %v", state.Machines, state.Seeds)
	}

	e.untouched()
}

func (e *env) untouched() {
	e.Helper()

	if diff := cmp.Diff(e.foreign, e.Inspect().Foreign); diff != "" {
		e.Errorf("machines of others were touched (-before +after):\n%s", diff)
	}
}

// only makes sure that there is exactly one machine, the claim's, started once.
func (e *env) only(c *claim) {
	e.Helper()

	state := e.Inspect()
	if len(state.Machines) != 1 {
		e.Fatalf("want one machine of %s, there are %+v", c.spec.Owner.UID, state.Machines)
	}

	m := state.Machines[0]
	if m.ClaimUID != c.spec.Owner.UID || m.Starts != 1 {
		e.Errorf("want a machine of %s started once, there is %+v", c.spec.Owner.UID, m)
	}
}

// held makes sure that there is exactly one machine, the claim's, never started and
// without a cloud-init ISO.
func (e *env) held(c *claim) {
	e.Helper()

	state := e.Inspect()
	if len(state.Machines) != 1 || len(state.Seeds) != 0 {
		e.Fatalf("want one held machine of %s, there is %+v", c.spec.Owner.UID, state)
	}

	m := state.Machines[0]
	if m.ClaimUID != c.spec.Owner.UID || m.Starts != 0 || m.Running {
		e.Errorf("want a machine of %s that was never started, there is %+v", c.spec.Owner.UID, m)
	}
}

// kind makes sure of an error's kind.
func (e *env) kind(err error, want hypervisor.Kind) {
	e.Helper()

	if hypervisor.KindOf(err) != want {
		e.Errorf("want an error of kind %s, got %q: %v", want, hypervisor.KindOf(err), err)
	}
}
