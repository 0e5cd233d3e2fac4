// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"context"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/github/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// patience bounds each thing that is waited for.
const patience = 25 * time.Second

// Life is what one job's machine goes through.
type Life struct {
	Name string
	// Guest is what the machine does; nil runs the job.
	Guest func(pve.GuestVM)
	// Drive queues the job and does what else a forge's user does, until the job is over.
	Drive func(w *World)
}

// Lives are those whose calls differ.
func Lives() []Life {
	return []Life{
		{Name: "the job runs", Drive: func(w *World) {
			w.Fleet.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}})
			w.Fleet.EventuallyDone(1)
		}},
		{
			// The machine is up when nobody needs it any more: it is switched off.
			Name: "the job is cancelled", Guest: func(vm pve.GuestVM) { <-vm.Context.Done() },
			Drive: func(w *World) {
				job := w.Fleet.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}})[0]
				w.Fleet.Eventually("the machine being up", func() (bool, string) {
					return w.trap.has("start"), "no VM was started"
				})

				if err := w.Fleet.GitHub.Cancel(job.ID); err != nil {
					w.Fleet.T.Error(err)
				}
			},
		},
	}
}

// World is one operator's world, for one life.
type World struct {
	Fleet     *fleet.Fleet
	Operators *operators
	Watch     *watch
	trap      *trap
}

// NewWorld makes the world, with the trap set.
func NewWorld(t testing.TB, env *kube.Env, binary string, life Life, at *Boundary) *World {
	t.Helper()

	model := fleet.Model()
	model.Guest.Script = life.Guest
	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Patience = patience
	// Webhooks that found no operator are made up for by asking.
	f.Runners.JobSilence = time.Second

	w := &World{Fleet: f, Operators: newOperators(t, f, binary), Watch: newWatch(t, f.PVE)}
	w.trap = newTrap(at, w.Operators.kill)
	t.Cleanup(f.PVE.OnCall(w.trap.onCall(f.PVE)))

	template := f.NewTemplate()
	template.Spec.Bootstrap.Config.GitHub.APIURL = w.trap.forge(t, f)
	pool := f.NewPool(4)
	pool.Spec.Scaling.ScaleDownDelay = &metav1.Duration{Duration: 50 * time.Millisecond}

	f.CreateCluster(f.NewCluster())
	f.Create(template)
	f.Create(pool)
	t.Cleanup(w.raze)

	if err := w.Operators.start(t.Context()); err != nil {
		t.Fatal(err)
	}

	f.EventuallyReady(f.NewPool(0))

	return w
}

// raze takes the world's objects away: the next operator at this API server would work
// on them.
func (w *World) raze() {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()

	w.Operators.kill()

	free := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	in := client.InNamespace(w.Fleet.Namespace)

	var claims v1alpha1.MachineClaimList
	if err := w.Fleet.Client.List(ctx, &claims, in); err != nil {
		w.Fleet.T.Error(err)
	}

	for i := range claims.Items {
		if err := w.Fleet.Client.Patch(ctx, &claims.Items[i], free); client.IgnoreNotFound(err) != nil {
			w.Fleet.T.Error(err)
		}
	}

	for _, kind := range []client.Object{
		&v1alpha1.RunnerPool{}, &v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.MachineClaim{}, &v1alpha1.RunnerJob{},
	} {
		if err := w.Fleet.Client.DeleteAllOf(ctx, kind, in); err != nil {
			w.Fleet.T.Error(err)
		}
	}

	for _, obj := range []client.Object{w.Fleet.NewPool(0), w.Fleet.NewTemplate()} {
		if err := w.Fleet.Client.Patch(ctx, obj, free); client.IgnoreNotFound(err) != nil {
			w.Fleet.T.Error(err)
		}
	}
}

// Run lives the life to its end: the job is over by the operator's own books, and
// nothing is left.
func (w *World) Run(life Life) {
	life.Drive(w)
	w.Fleet.Eventually("the job being completed in the ledger", func() (bool, string) {
		var jobs v1alpha1.RunnerJobList
		if err := w.Fleet.Client.List(w.Fleet.T.Context(), &jobs, client.InNamespace(w.Fleet.Namespace)); err != nil {
			return false, err.Error()
		}

		for i := range jobs.Items {
			if jobs.Items[i].Spec.State != v1alpha1.JobCompleted {
				return false, jobs.Items[i].Name + " is " + string(jobs.Items[i].Spec.State)
			}
		}

		return len(jobs.Items) == 1, "no job is known"
	})
	w.Fleet.EventuallyClean()
}

// Restart waits until the operator was killed, and starts the next.
func (w *World) Restart() error {
	defer close(w.trap.restarted)

	select {
	case <-w.trap.sprung:
	case <-time.After(patience):
		return fmt.Errorf("the boundary was not reached; there were %v", w.Calls())
	}

	if w.trap.at.Moment == Before && w.trap.at.Call.Side == sidePVE {
		<-w.trap.over // the call is cut before anybody else calls
	}

	return w.Operators.start(w.Fleet.T.Context())
}

// Calls are those of the life so far.
func (w *World) Calls() []Call { return w.trap.all() }
