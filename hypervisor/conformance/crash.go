// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// scene is a part of a machine's life, with what comes before it, and what comes after
// until the machine runs. After nil the machine is only removed.
type scene struct {
	before func(*env, *claim)
	do     func(*claim) func(context.Context, hypervisor.Provider) error
	after  func(*env, *claim)
}

func whileCreating() scene { return scene{do: creating, after: (*env).resume} }

func whileDeleting() scene { return scene{before: (*env).start, do: removing} }

func whileHolding() scene {
	return scene{
		before: func(_ *env, c *claim) { c.spec.Standby = true },
		do:     creating,
		after: func(e *env, c *claim) {
			e.start(c)
			e.held(c)
			release(c)
			e.resume(c)
		},
	}
}

func whileReleasing() scene {
	return scene{
		before: func(e *env, c *claim) {
			c.spec.Standby = true
			e.start(c)
			release(c)
		},
		do:    creating,
		after: (*env).resume,
	}
}

func whileDeletingHeld() scene {
	return scene{
		before: func(e *env, c *claim) {
			c.spec.Standby = true
			e.start(c)
		},
		do: removing,
	}
}

// start has the machine made by a process of its own.
func (e *env) start(c *claim) {
	e.Helper()
	e.mustCreate(e.connect(operatorA), c)
}

func release(c *claim) { c.spec.Standby = false }

// Crashes ends the process at each call in turn that changes something, before its effect
// and after it, and has a new one go on with what the claim has on record. It must end
// with one machine that was started once, and then with nothing.
func Crashes(t *testing.T, fresh New) {
	t.Helper()
	crashes(t, fresh, Boundary.changes, 0)
}

// morePolls is how many boundaries there may be beyond those of an undisturbed life, because
// a poll comes once more than before.
const morePolls = 4

// CrashesAtEveryCall is Crashes at calls that only look as well. It takes minutes.
func CrashesAtEveryCall(t *testing.T, fresh New) {
	t.Helper()
	crashes(t, fresh, func(Boundary) bool { return true }, morePolls)
}

func (b Boundary) changes() bool { return b.Write }

// at chooses the boundaries at which processes die.
type at func(Boundary) bool

func crashes(t *testing.T, fresh New, where at, more int) {
	t.Helper()

	scenes := []struct {
		name string
		of   func() scene
	}{
		{"while creating", whileCreating},
		{"while deleting", whileDeleting},
		{"while holding", whileHolding},
		{"while releasing", whileReleasing},
		{"while creating with a TPM", whileGivingTPM},
		{"while deleting a held one", whileDeletingHeld},
	}
	for _, s := range scenes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()

			// An undisturbed life tells how many boundaries there are.
			for n := range lifeCalls(t, fresh, where, s.of()) + more {
				t.Run(strconv.Itoa(n+1), func(t *testing.T) {
					t.Parallel()
					crash(newEnv(t, fresh), n+1, where, s.of())
				})
			}
		})
	}
}

// crash plays the scene with a process that dies at the n-th boundary, and what is to
// come after it.
func crash(e *env, n int, where at, s scene) {
	e.Helper()

	c := e.claim(1)

	if s.before != nil {
		s.before(e, c)
	}

	e.crashAt(n, where, s.do(c))

	if s.after != nil {
		s.after(e, c)
	}

	e.mustRemove(e.connect(operatorA), c)
	e.settled()
	e.nothingLeft()
}

func creating(c *claim) func(context.Context, hypervisor.Provider) error {
	return func(ctx context.Context, p hypervisor.Provider) error {
		_, err := create(ctx, p, c)

		return err
	}
}

func removing(c *claim) func(context.Context, hypervisor.Provider) error {
	return func(ctx context.Context, p hypervisor.Provider) error { return Remove(ctx, p, c.ref()) }
}

// lifeCalls counts the boundaries of an undisturbed scene.
func lifeCalls(t *testing.T, fresh New, where at, scene scene) int {
	t.Helper()

	e := newEnv(t, fresh)
	c := e.claim(1)

	if scene.before != nil {
		scene.before(e, c)
	}

	return e.crashAt(0, where, scene.do(c))
}

// resume goes on in a new process.
func (e *env) resume(c *claim) {
	e.Helper()
	e.mustCreate(e.connect(operatorA), c)
	e.only(c)
}

// settled waits until what the dead process had asked for is over: a call of its may
// have been on its way still, and then a new process's sweep finds what it made.
func (e *env) settled() {
	e.Helper()

	p := e.connect(operatorA)

	all, err := p.List(e.Context())
	if err != nil {
		e.Fatal(err)
	}

	for _, m := range all {
		e.Errorf("left after the removal: %+v", m)
	}
}

// crashAt runs do in a process that dies at the n-th of the boundaries, and gives how many
// were passed.
func (e *env) crashAt(n int, where at, do func(context.Context, hypervisor.Provider) error) int {
	e.Helper()

	ctx, cancel := context.WithCancel(e.Context())
	defer cancel()

	var (
		mu    sync.Mutex
		count int
	)

	stop := e.OnCall(func(b Boundary) {
		if !where(b) {
			return
		}

		mu.Lock()
		defer mu.Unlock()

		count++
		if count == n {
			e.Logf("dies at %s (before: %t)", b.What, b.Before)
			cancel()
		}
	})

	conn := e.Connect(e.T, e.options(operatorA))
	err := do(ctx, conn)

	stop()
	conn.Close()

	if err != nil && !errors.Is(err, context.Canceled) {
		e.Fatal(err)
	}

	mu.Lock()
	defer mu.Unlock()

	return count
}
