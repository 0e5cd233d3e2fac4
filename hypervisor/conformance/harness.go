// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// Harness is a new hypervisor for one case, or a part of a hypervisor that no other case uses. Such
// a part has its own id range and its own cluster name, so the operators of the case do not own
// objects of other cases.
type Harness struct {
	// Connect returns a new provider, as a new process does.
	Connect func(tb TB, options hypervisor.Options) hypervisor.Connection
	// Template that machines can be cloned from, and a shape that the template supports.
	Template hypervisor.TemplateRef
	Shape    hypervisor.Shape
	// TPMTemplate is a template with a TPM. It is empty if the hypervisor has no TPMs for machines.
	TPMTemplate hypervisor.TemplateRef
	// Device is the name of devices of which the hypervisor has Devices, and which no machine has. It is empty
	// if the hypervisor has no devices for machines.
	Device  string
	Devices int
	// IDMin is the lowest id of the range.
	IDMin int
	// PlacesAtStart is true if the hypervisor chooses a machine's node when it starts the machine.
	// The machine has no node before.
	PlacesAtStart bool
	// NamesHoldOwner is true if the hypervisor's name for a machine includes the owner and the id.
	// Then a reference with the same id and another owner refers to no machine.
	NamesHoldOwner bool
	// RealTime is true if the hypervisor uses its own clock, as a real hypervisor does. Providers
	// then use the real clock and their default intervals.
	RealTime bool
	// TPMsHidden is true if Inspect cannot distinguish TPMs. Cases about TPMs are then skipped.
	TPMsHidden bool
	// ConsoleText is what each machine writes to its serial console. It is empty if the provider keeps no
	// output of consoles.
	ConsoleText string
	// Inspect returns the current state of the hypervisor.
	Inspect func() State
	// OnCall makes f run at each call that reaches the hypervisor, before and after the effect of
	// the call. The call waits for f. Only RunCrashes, RunCrashesAtEveryCall and RunProgramCrashes need OnCall.
	OnCall func(f func(Boundary)) (remove func())
	// Restart kills the provider if it is a program of its own, and starts it again. Only RunProgramCrashes needs Restart.
	Restart func()
	// PowerOff powers off the guest of a machine.
	PowerOff func(id int)
	// OccupyID creates a machine of another owner with the id.
	OccupyID func(tb TB, id int)
	// DeleteExternally deletes a machine without the provider. Its cloud-init ISO stays.
	DeleteExternally func(tb TB, id int)
}

// Boundary is a point in a call at which the case can act.
type Boundary struct {
	// Before is true before the effect of the call. It is false after the effect and before the
	// response.
	Before bool
	// Write is true if the call changes something.
	Write bool
	// Call is the name of the call.
	Call string
}

// State is the real state of the hypervisor.
type State struct {
	// Machines that did not exist at the start of the case.
	Machines []ObservedMachine
	// Seeds are the names of all cloud-init ISOs and Secrets.
	Seeds []string
	// TemplateTPMs are the TPMs of the templates, each identified as ObservedMachine.TPM is.
	TemplateTPMs []string
	// Foreign describes the objects that existed at the start of the case and the machines of
	// others. The text changes if any of these objects changes.
	Foreign string
}

// ObservedMachine is the real state of a machine.
type ObservedMachine struct {
	ID int
	// ClaimUID and OperatorUID of the ownership that the machine carries.
	ClaimUID, OperatorUID string
	Running               bool
	// Starts is the number of times that the machine was started.
	Starts int
	// TPM identifies the seeds of the machine's TPM. Two machines with the same seeds could
	// impersonate each other. It is empty if the machine has no TPM.
	TPM string
	// Devices identify the devices that the machine has while it runs. No two devices have the same text.
	Devices []string
}

// TB is what a case needs of the program that runs it. *testing.T has these methods.
type TB interface { //nolint:interfacebloat // the methods of *testing.T
	Helper()
	Context() context.Context
	Cleanup(f func())
	Log(args ...any)
	Logf(format string, args ...any)
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Skip(args ...any)
}

// Test runs cases. *testing.T is a Test[*testing.T].
type Test[T any] interface {
	TB
	Parallel()
	Run(name string, f func(T)) bool
}

// HarnessFunc returns the harness of one case.
type HarnessFunc[T any] func(t T) Harness

// UIDs of the two operators in the cases.
const (
	operatorA = "aaaaaaaa-0000-4000-8000-000000000001"
	operatorB = "bbbbbbbb-0000-4000-8000-000000000002"
)

const (
	// waitTimeout limits each wait of a case. A correct provider never reaches it.
	waitTimeout = 3 * time.Minute
	// pollInterval is the interval at which a case checks the state that it waits for.
	pollInterval = 20 * time.Millisecond
)

// env is the environment of one case.
type env struct {
	TB
	Harness

	clock          clock.WithTicker
	initialForeign string
	// killsProgram is true if the process that ends in a case is the provider's own program.
	killsProgram bool

	mu         sync.Mutex
	wakeCounts map[string]int
}

func newEnv[T TB](t T, newHarness HarnessFunc[T]) *env {
	t.Helper()

	e := &env{TB: t, Harness: newHarness(t), wakeCounts: map[string]int{}}

	if !e.RealTime {
		e.clock = FastClock(t, Speed)
	}

	e.initialForeign = e.Inspect().Foreign

	return e
}

func (e *env) newOptions(operator string) hypervisor.Options {
	options := hypervisor.Options{OperatorUID: operator, Wake: e.countWake}
	if !e.RealTime {
		options.TaskInterval, options.ListInterval, options.Clock = Speed*pollInterval, Speed*pollInterval, e.clock
	}

	return options
}

func (e *env) countWake(o hypervisor.Owner) {
	e.mu.Lock()
	defer e.mu.Unlock()

	e.wakeCounts[o.UID]++
}

func (e *env) wakeCount(uid string) int {
	e.mu.Lock()
	defer e.mu.Unlock()

	return e.wakeCounts[uid]
}

// connect returns a new provider and closes it at the end of the case.
func (e *env) connect(operator string) hypervisor.Connection {
	e.Helper()

	conn := e.Connect(e.TB, e.newOptions(operator))
	e.Cleanup(conn.Close)

	return conn
}

// claim is the state that a controller keeps for a machine: its spec, with the id once it is
// reserved.
type claim struct {
	spec hypervisor.MachineSpec
	// seedCalls is the number of times that the provider requested the cloud-init seed.
	seedCalls int
}

func (e *env) newClaim(n int) *claim {
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

func (c *claim) newSeed(context.Context) (hypervisor.Seed, error) {
	c.seedCalls++

	return hypervisor.Seed{
		UserData: []byte("#cloud-config\n{}\n"), MetaData: []byte("instance-id: " + c.spec.Owner.UID + "\n"),
	}, nil
}

// Advance makes the next call that a controller makes. If the spec has no id, Advance reserves one
// and records it in the spec. Otherwise it calls Ensure for a standby machine and Start for another
// machine.
func Advance(
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

func (c *claim) advance(ctx context.Context, p hypervisor.Provider) (hypervisor.Machine, error) {
	return Advance(ctx, p, &c.spec, c.newSeed)
}

// Create calls Advance, as a controller does, until the machine runs or has run. For a standby
// machine, it stops once the machine is prepared. It retries after a transient error, and reserves
// another id after an error of kind IDTaken.
func Create(
	ctx context.Context, p hypervisor.Provider, s *hypervisor.MachineSpec, seed func(context.Context) (hypervisor.Seed, error),
) (hypervisor.Machine, error) {
	deadline := time.Now().Add(waitTimeout)

	for {
		m, err := Advance(ctx, p, s, seed)

		switch {
		case ctx.Err() != nil:
			return m, ctx.Err()
		case hypervisor.Is(err, hypervisor.IDTaken):
			s.ID, s.Node = 0, ""
		case err != nil && !IsTransient(err):
			return m, err
		case err == nil && (m.State == hypervisor.StateRunning || m.State == hypervisor.StateStopped):
			return m, nil
		case err == nil && s.Standby && m.State == hypervisor.StatePrepared:
			return m, nil
		}

		if time.Now().After(deadline) {
			return m, fmt.Errorf("create machine of %s: it is still %s (%s): %w", s.Owner.Name, m.State, m.Message, err)
		}

		time.Sleep(pollInterval)
	}
}

func createMachine(ctx context.Context, p hypervisor.Provider, c *claim) (hypervisor.Machine, error) {
	return Create(ctx, p, &c.spec, c.newSeed)
}

// Delete calls Provider.Delete, as a controller does, until nothing of the machine is left.
func Delete(ctx context.Context, p hypervisor.Provider, ref hypervisor.MachineRef) error {
	deadline := time.Now().Add(waitTimeout)

	for {
		err := p.Delete(ctx, ref)

		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case hypervisor.Is(err, hypervisor.NotFound):
			return nil
		case err != nil && !IsTransient(err):
			return err
		}

		if time.Now().After(deadline) {
			return fmt.Errorf("delete machine of %s: %w", ref.Owner.Name, err)
		}

		time.Sleep(pollInterval)
	}
}

// IsTransient reports whether the caller should retry after err, which must not be nil.
func IsTransient(err error) bool {
	switch hypervisor.KindOf(err) {
	case hypervisor.Busy, hypervisor.UnknownOutcome, hypervisor.Unavailable, hypervisor.NoCapacity, "":
		return true
	default:
		return false
	}
}

func (e *env) mustCreate(p hypervisor.Provider, c *claim) hypervisor.Machine {
	e.Helper()

	m, err := createMachine(e.Context(), p, c)
	if err != nil {
		e.Fatal(err)
	}

	return m
}

func (e *env) mustDelete(p hypervisor.Provider, c *claim) {
	e.Helper()

	if err := Delete(e.Context(), p, c.ref()); err != nil {
		e.Fatal(err)
	}
}

// eventually waits until the condition is true. It fails the test after waitTimeout.
func (e *env) eventually(description string, ok func() bool) {
	e.Helper()

	deadline := time.Now().Add(waitTimeout)
	for !ok() {
		if time.Now().After(deadline) {
			e.Fatalf("timed out: condition %q did not become true", description)
		}

		time.Sleep(pollInterval)
	}
}

// assertNothingLeft checks that no machine and no cloud-init ISO is left and that objects of others
// have not changed.
func (e *env) assertNothingLeft() {
	e.Helper()

	state := e.Inspect()
	if len(state.Machines)+len(state.Seeds) > 0 {
		e.Errorf("want nothing left, got machines %+v, cloud-init ISOs %v", state.Machines, state.Seeds)
	}

	e.assertForeignUnchanged()
}

func (e *env) assertForeignUnchanged() {
	e.Helper()

	if now := e.Inspect().Foreign; now != e.initialForeign {
		e.Errorf("objects of others have changed:\nbefore: %s\nafter: %s", e.initialForeign, now)
	}
}

// assertStartedOnce checks that exactly one machine exists, that it belongs to the claim, and that it
// was started once.
func (e *env) assertStartedOnce(c *claim) {
	e.Helper()

	state := e.Inspect()
	if len(state.Machines) != 1 {
		e.Fatalf("want one machine of %s, got %+v", c.spec.Owner.UID, state.Machines)
	}

	m := state.Machines[0]
	if m.ClaimUID != c.spec.Owner.UID || m.Starts != 1 {
		e.Errorf("want a machine of %s that was started once, got %+v", c.spec.Owner.UID, m)
	}
}

// assertPrepared checks that exactly one machine exists, that it belongs to the claim, and that it
// was never started and has no cloud-init ISO.
func (e *env) assertPrepared(c *claim) {
	e.Helper()

	state := e.Inspect()
	if len(state.Machines) != 1 || len(state.Seeds) != 0 {
		e.Fatalf("want one prepared machine of %s, got %+v", c.spec.Owner.UID, state)
	}

	m := state.Machines[0]
	if m.ClaimUID != c.spec.Owner.UID || m.Starts != 0 || m.Running {
		e.Errorf("want a machine of %s that was never started, got %+v", c.spec.Owner.UID, m)
	}
}

func (e *env) assertKind(err error, want hypervisor.Kind) {
	e.Helper()

	if hypervisor.KindOf(err) != want {
		e.Errorf("want an error of kind %s, got %q: %v", want, hypervisor.KindOf(err), err)
	}
}
