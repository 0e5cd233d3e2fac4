// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"strconv"
	"sync"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// scene is the part of a machine's lifecycle in which a process crashes. newAction returns the action
// that crashes. setUp runs before the action, and finish runs after it until the machine runs. Both
// may be nil. At the end, the machine is deleted.
type scene struct {
	setUp     func(*env, *claim)
	newAction func(*claim) func(context.Context, hypervisor.Provider) error
	finish    func(*env, *claim)
}

func newCreationScene() scene {
	return scene{newAction: newCreateAction, finish: (*env).resumeInNewProcess}
}

func newDeletionScene() scene { return scene{setUp: (*env).startMachine, newAction: newDeleteAction} }

func newStandbyScene() scene {
	return scene{
		setUp:     func(_ *env, c *claim) { c.spec.Standby = true },
		newAction: newCreateAction,
		finish: func(e *env, c *claim) {
			e.startMachine(c)
			e.assertPrepared(c)
			endStandby(c)
			e.resumeInNewProcess(c)
		},
	}
}

func newStandbyStartScene() scene {
	return scene{
		setUp: func(e *env, c *claim) {
			c.spec.Standby = true
			e.startMachine(c)
			endStandby(c)
		},
		newAction: newCreateAction,
		finish:    (*env).resumeInNewProcess,
	}
}

func newStandbyDeletionScene() scene {
	return scene{
		setUp: func(e *env, c *claim) {
			c.spec.Standby = true
			e.startMachine(c)
		},
		newAction: newDeleteAction,
	}
}

// startMachine creates the claim's machine in a new process.
func (e *env) startMachine(c *claim) {
	e.Helper()
	e.mustCreate(e.connect(operatorA), c)
}

func endStandby(c *claim) { c.spec.Standby = false }

// RunCrashes runs each scene once for each boundary of a call that changes something. A boundary is the point
// right before or right after a call to the hypervisor. At the boundary, the process ends, and a new
// process continues with the state that the claim records. The case checks that the result is one machine
// that was started once, and that nothing is left after the machine is deleted.
func RunCrashes[T Test[T]](t T, newHarness HarnessFunc[T]) {
	t.Helper()
	runScenes(t, newHarness, Boundary.isWrite, 0)
}

// extraPolls is the number of boundaries that RunCrashesAtEveryCall tries beyond those of a run without
// a crash, because the number of polls varies between runs.
const extraPolls = 4

// RunCrashesAtEveryCall does the same as RunCrashes, but also at calls that only read. It takes minutes.
func RunCrashesAtEveryCall[T Test[T]](t T, newHarness HarnessFunc[T]) {
	t.Helper()
	runScenes(t, newHarness, func(Boundary) bool { return true }, extraPolls)
}

func (b Boundary) isWrite() bool { return b.Write }

type namedScene struct {
	name     string
	newScene func() scene
}

func listScenes() []namedScene {
	return []namedScene{
		{"while creating", newCreationScene},
		{"while deleting", newDeletionScene},
		{"while preparing a standby machine", newStandbyScene},
		{"while starting a standby machine", newStandbyStartScene},
		{"while creating with a TPM", newTPMCreationScene},
		{"while deleting a standby machine", newStandbyDeletionScene},
	}
}

// boundaryFilter selects the boundaries at which a process ends.
type boundaryFilter func(Boundary) bool

func runScenes[T Test[T]](t T, newHarness HarnessFunc[T], isCrashPoint boundaryFilter, extra int) {
	t.Helper()

	for _, s := range listScenes() {
		t.Run(s.name, func(t T) {
			t.Parallel()

			// A run without a crash counts the boundaries.
			for n := range countBoundaries(t, newHarness, isCrashPoint, s.newScene()) + extra {
				t.Run(strconv.Itoa(n+1), func(t T) {
					t.Parallel()
					runScene(newEnv(t, newHarness), n+1, isCrashPoint, s.newScene())
				})
			}
		})
	}
}

// runScene runs the scene with a process that ends at the n-th boundary. It then finishes the scene,
// deletes the machine, and checks that nothing is left.
func runScene(e *env, n int, isCrashPoint boundaryFilter, s scene) {
	e.Helper()

	c := e.newClaim(1)

	if s.setUp != nil {
		s.setUp(e, c)
	}

	e.runUntilCrash(n, isCrashPoint, s.newAction(c))

	if s.finish != nil {
		s.finish(e, c)
	}

	e.mustDelete(e.connect(operatorA), c)
	e.assertListEmpty()
	e.assertNothingLeft()
}

func newCreateAction(c *claim) func(context.Context, hypervisor.Provider) error {
	return func(ctx context.Context, p hypervisor.Provider) error {
		_, err := createMachine(ctx, p, c)

		return err
	}
}

func newDeleteAction(c *claim) func(context.Context, hypervisor.Provider) error {
	return func(ctx context.Context, p hypervisor.Provider) error { return Delete(ctx, p, c.ref()) }
}

// countBoundaries returns the number of boundaries of the scene without a crash.
func countBoundaries[T Test[T]](t T, newHarness HarnessFunc[T], isCrashPoint boundaryFilter, scene scene) int {
	t.Helper()

	e := newEnv(t, newHarness)
	c := e.newClaim(1)

	if scene.setUp != nil {
		scene.setUp(e, c)
	}

	return e.runUntilCrash(0, isCrashPoint, scene.newAction(c))
}

// resumeInNewProcess continues with the claim in a new process and checks the result.
func (e *env) resumeInNewProcess(c *claim) {
	e.Helper()
	e.mustCreate(e.connect(operatorA), c)
	e.assertStartedOnce(c)
}

// assertListEmpty checks in a new process that the operator has no objects on the hypervisor. The
// last call of the process that ended can take effect after its end. The list then includes the
// object that this call created.
func (e *env) assertListEmpty() {
	e.Helper()

	p := e.connect(operatorA)

	all, err := p.List(e.Context())
	if err != nil {
		e.Fatal(err)
	}

	for _, m := range all {
		e.Errorf("want nothing left after the deletion, got %+v", m)
	}
}

// RunProgramCrashes does the same as RunCrashesAtEveryCall for a provider that is a separate program. The program is killed
// and started again, and the operator continues with the same connection. The scenes run one after the other.
func RunProgramCrashes[T Test[T]](t T, newHarness HarnessFunc[T]) {
	t.Helper()

	all := func(Boundary) bool { return true }

	for _, s := range listScenes() {
		t.Run(s.name, func(t T) {
			for n := range countBoundaries(t, newHarness, all, s.newScene()) {
				t.Run(strconv.Itoa(n+1), func(t T) {
					e := newEnv(t, newHarness)
					e.killsProgram = true
					runScene(e, n+1, all, s.newScene())
				})
			}
		})
	}
}

// endProcess ends the process in which the case expects the crash: the operator, whose calls are canceled, or the program.
func (e *env) endProcess(cancel context.CancelFunc) {
	if e.killsProgram {
		e.Restart()
	} else {
		cancel()
	}
}

// runUntilCrash runs the action in a process that ends at the n-th boundary that the filter selects.
// It returns the number of boundaries that the process reached. With n = 0, the process does not
// crash.
func (e *env) runUntilCrash(n int, isCrashPoint boundaryFilter, action func(context.Context, hypervisor.Provider) error) int {
	e.Helper()

	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()

	var (
		mu    sync.Mutex
		count int
	)

	stop := e.OnCall(func(b Boundary) {
		if !isCrashPoint(b) {
			return
		}

		mu.Lock()
		defer mu.Unlock()

		count++
		if count == n {
			position := "after"
			if b.Before {
				position = "before"
			}

			e.Logf("the process ends %s call %s", position, b.Call)
			e.endProcess(cancel)
		}
	})

	conn := e.Connect(e.TB, e.newOptions(operatorA))
	err := action(ctx, conn)

	stop()
	conn.Close()

	if err != nil && !errors.Is(err, context.Canceled) {
		e.Fatal(err)
	}

	mu.Lock()
	defer mu.Unlock()

	return count
}
