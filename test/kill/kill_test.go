// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/exe"
	"github.com/hyperfleet/hyperfleet/test/kill"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// slots is how many operators run side by side. An operator looks after all of its API
// server, so that each slot has one of its own.
const slots = 2

// binary is the program that is killed.
var binary string

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	os.Exit(build(m))
}

// build makes the program from what is here, unless HYPERFLEET_BIN names one.
func build(m *testing.M) int {
	binary = os.Getenv("HYPERFLEET_BIN")
	if binary != "" {
		return m.Run()
	}

	return exe.With(func(dir string) int {
		binary = filepath.Join(dir, "hyperfleet")

		return m.Run()
	}, "cmd/hyperfleet")
}

// row is a line of the table.
type row struct {
	life     string
	at       kill.Boundary
	outcome  string
	machines int
}

// Killed at any boundary of a call, the operator's successor brings the job to its end,
// makes no second machine for a claim, and leaves nothing behind.
func TestKilledAtEveryCall(t *testing.T) { //nolint:tparallel // the dry runs come first and alone
	envs := make(chan *kube.Env, slots)
	for range slots {
		envs <- kube.Start(t, kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
	}

	var (
		mu    sync.Mutex
		table []row
		known = map[kill.Call]bool{}
	)

	t.Cleanup(func() { show(t, table) })

	for _, life := range kill.Lives() {
		calls := dryRun(t, envs, life, known)
		for _, call := range calls {
			known[call] = true
		}

		for _, at := range kill.Boundaries(calls) {
			t.Run(strings.ReplaceAll(life.Name, " ", "_")+"/"+at.Name(), func(t *testing.T) {
				t.Parallel()

				result := row{life: life.Name, at: at}
				defer func() {
					result.outcome = "ok"
					if t.Failed() {
						result.outcome = "FAILED"
					}

					mu.Lock()
					defer mu.Unlock()

					table = append(table, result)
				}()

				env := <-envs
				t.Cleanup(func() { envs <- env })

				result.machines = die(t, env, life, at)
			})
		}
	}
}

// dryRun lives a life undisturbed and gives the calls to be killed at.
func dryRun(t *testing.T, envs chan *kube.Env, life kill.Life, known map[kill.Call]bool) []kill.Call {
	t.Helper()

	var calls []kill.Call

	ok := t.Run(strings.ReplaceAll(life.Name, " ", "_")+"/undisturbed", func(t *testing.T) {
		env := <-envs
		t.Cleanup(func() { envs <- env })

		w := kill.NewWorld(t, env, binary, life, nil)
		w.Run(life)

		for _, broken := range w.Verdict() {
			t.Error(broken)
		}

		calls = life.Calls(w.Calls(), known)
	})
	if !ok {
		t.Fatal("the undisturbed life failed")
	}

	return calls
}

// die lives a life with one death in it, and gives how many machines were made.
func die(t *testing.T, env *kube.Env, life kill.Life, at kill.Boundary) int {
	t.Helper()

	w := kill.NewWorld(t, env, binary, life, &at)
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

	for _, broken := range w.Verdict() {
		t.Error(broken)
	}

	return w.Watch.Machines()
}

func show(t *testing.T, table []row) {
	t.Helper()

	var out strings.Builder

	w := tabwriter.NewWriter(&out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "killed\toutcome\tVMs\tlife")

	for _, r := range table {
		fmt.Fprintf(w, "%s\t%s\t%d\t%s\n", r.at, r.outcome, r.machines, r.life)
	}

	_ = w.Flush()

	t.Logf("\n%s", out.String())
}
