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
	// binary is the path of the operator's program.
	binary string
	env    *kube.Env
)

func TestMain(m *testing.M) { os.Exit(buildOperator(m)) }

// buildOperator builds the program, unless HYPERFLEET_BIN names one.
func buildOperator(m *testing.M) int {
	run := func() int { return kube.Run(m, &env, newKubeOptions()...) }

	binary = os.Getenv("HYPERFLEET_BIN")
	if binary != "" {
		return run()
	}

	return exe.RunWith(func(dir string) int {
		binary = filepath.Join(dir, "hyperfleet")

		return run()
	}, "cmd/hyperfleet")
}

// newKubeOptions returns the options of the operator's API servers.
func newKubeOptions() []kube.Option {
	return []kube.Option{kube.WithCRDs("../../deploy/crds")}
}

// environments has the API servers of operators that run in parallel. Each operator needs its own, because it
// reconciles all objects of its API server.
type environments chan *kube.Env

func newEnvironments(t *testing.T, slots int) environments {
	t.Helper()

	tr := make(environments, slots)
	tr <- env

	for range slots - 1 {
		tr <- kube.Start(t, newKubeOptions()...)
	}

	return tr
}

// runWithKill runs a lifecycle in a free environment, and kills the operator at the boundary.
func (tr environments) runWithKill(t *testing.T, life kill.Lifecycle, at kill.Boundary) {
	t.Helper()
	t.Run(strings.ReplaceAll(life.Name, " ", "_")+"/"+at.Name(), func(t *testing.T) {
		t.Parallel()

		env := <-tr
		t.Cleanup(func() { tr <- env })

		runLifecycle(t, env, life, at)
	})
}

// The operator is killed before or after one call of each kind. The next operator completes the job, creates
// no second machine for a claim, and leaves nothing behind.
func TestKilledAtCalls(t *testing.T) { //nolint:tparallel // each killed operator has its own API server
	tr := newEnvironments(t, 2)

	for _, life := range kill.Lifecycles() {
		for _, at := range kill.KeyBoundaries()[life.Name] {
			tr.runWithKill(t, life, at)
		}
	}
}

// The same for every boundary of every call. The test finds the calls by running each lifecycle without a
// kill.
func TestSoakKilledAtEveryCall(t *testing.T) { //nolint:tparallel // the lifecycles without a kill run first and alone
	property.Soak(t)

	tr := newEnvironments(t, max(runtime.NumCPU(), 2))
	known := map[kill.Call]bool{}
	boundaries := kill.KeyBoundaries()

	for _, life := range kill.Lifecycles() {
		calls := tr.findCalls(t, life, known)
		for _, call := range calls {
			known[call] = true
		}

		all := kill.Boundaries(calls)
		for _, at := range boundaries[life.Name] {
			if !slices.Contains(all, at) {
				t.Errorf("%s: no %s among %v", life.Name, at, all)
			}
		}

		for _, at := range all {
			tr.runWithKill(t, life, at)
		}
	}
}

// findCalls runs a lifecycle several times without a kill, and returns the calls at which to kill.
func (tr environments) findCalls(t *testing.T, life kill.Lifecycle, known map[kill.Call]bool) []kill.Call {
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

// runLifecycle runs a lifecycle, and kills the operator once.
func runLifecycle(t *testing.T, env *kube.Env, life kill.Lifecycle, at kill.Boundary) {
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
