// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/kill"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var (
	// binary is the program that is killed.
	binary string
	env    *kube.Env
)

func TestMain(m *testing.M) { os.Exit(build(m)) }

// build makes the program from what is here, unless HYPERFLEET_BIN names one.
func build(m *testing.M) int {
	run := func() int { return kube.Run(m, &env, kinds()...) }

	binary = os.Getenv("HYPERFLEET_BIN")
	if binary != "" {
		return run()
	}

	return exe.RunWith(func(dir string) int {
		binary = filepath.Join(dir, "hyperfleet")

		return run()
	}, "cmd/hyperfleet")
}

// kinds are what the operator's API server knows.
func kinds() []kube.Option {
	return []kube.Option{kube.WithCRDs("../../deploy/crds")}
}

// trial kills operators, side by side. An operator looks after all of its API server, so that
// each slot has one of its own.
type trial chan *kube.Env

func newTrial(t *testing.T, slots int) trial {
	t.Helper()

	tr := make(trial, slots)
	tr <- env

	for range slots - 1 {
		tr <- kube.Start(t, kinds()...)
	}

	return tr
}

// kill has an operator die at a boundary of a life, and see what becomes of that.
func (tr trial) kill(t *testing.T, life kill.Lifecycle, at kill.Boundary) {
	t.Helper()
	t.Run(strings.ReplaceAll(life.Name, " ", "_")+"/"+at.Name(), func(t *testing.T) {
		t.Parallel()

		env := <-tr
		t.Cleanup(func() { tr <- env })

		die(t, env, life, at)
	})
}

// Killed at a call of each kind, before it and after it, the operator's successor brings the
// job to its end, makes no second machine for a claim, and leaves nothing behind.
func TestKilledAtCalls(t *testing.T) { //nolint:tparallel // what is killed has API servers of its own
	tr := newTrial(t, 2)

	for _, life := range kill.Lifecycles() {
		for _, at := range kill.KeyBoundaries()[life.Name] {
			tr.kill(t, life, at)
		}
	}
}

// The same at any boundary of any call. What calls there are is not written down: undisturbed
// lives show it.
func TestSoakKilledAtEveryCall(t *testing.T) { //nolint:tparallel // the undisturbed lives come first and alone
	property.Soak(t)

	tr := newTrial(t, max(runtime.NumCPU(), 2))
	known := map[kill.Call]bool{}
	told := kill.KeyBoundaries()

	for _, life := range kill.Lifecycles() {
		calls := tr.undisturbed(t, life, known)
		for _, call := range calls {
			known[call] = true
		}

		all := kill.Boundaries(calls)
		for _, at := range told[life.Name] {
			if !slices.Contains(all, at) {
				t.Errorf("%s: no %s among %v", life.Name, at, all)
			}
		}

		for _, at := range all {
			tr.kill(t, life, at)
		}
	}
}

// undisturbed lives a life several times and gives the calls to be killed at.
func (tr trial) undisturbed(t *testing.T, life kill.Lifecycle, known map[kill.Call]bool) []kill.Call {
	t.Helper()

	const times = 3

	var lives [][]kill.Call

	for range times {
		ok := t.Run(strings.ReplaceAll(life.Name, " ", "_")+"/undisturbed", func(t *testing.T) {
			env := <-tr
			t.Cleanup(func() { tr <- env })

			w := kill.NewFixture(t, env, binary, life, nil)
			w.Run(life)

			for _, broken := range w.Violations() {
				t.Error(broken)
			}

			lives = append(lives, w.Calls())
		})
		if !ok {
			t.Fatal("the undisturbed life failed")
		}
	}

	return life.SelectCalls(lives, known)
}

// die lives a life with one death in it.
func die(t *testing.T, env *kube.Env, life kill.Lifecycle, at kill.Boundary) {
	t.Helper()

	w := kill.NewFixture(t, env, binary, life, &at)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(w.Operators.Logs())
		}
	})

	restarted := make(chan error, 1)
	go func() { restarted <- w.Restart() }()

	w.Run(life)

	if err := <-restarted; err != nil {
		t.Error(err)
	}

	w.Fleet.EventuallyClean()

	for _, broken := range w.Violations() {
		t.Error(broken)
	}
}
