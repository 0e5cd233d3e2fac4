// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	// patience bounds each thing that is waited for.
	patience = time.Minute
	// prefixLength of the machines' subnet.
	prefixLength = 24
)

// Life is what one job's machine goes through.
type Life struct {
	Name string
	// Guest is what the machine does; nil runs the job and powers off.
	Guest func(t testing.TB, w *World) func(pve.GuestVM)
	// Jobs is how many jobs there are.
	Jobs int
	// Only, if set, is what the operator is killed at: calls whose path ends in one of these.
	Only []string
	// Perhaps are calls, by how their paths end, that come or not in this life, as the operator
	// or the machine is faster. They are left to a life where they always come.
	Perhaps []string
	// Addresses, if set, is the pool that machines have their addresses of. The operator gives
	// them as well, and is killed at what it writes to the API server of that. Of each call
	// that Only names the first is meant, also where an earlier life had it.
	Addresses []v1alpha1.AddressRange
	// Drive queues the jobs and does what else a forge's user does, until they are over.
	Drive func(w *World)
}

// Names of lives.
const (
	JobRuns   = "the job runs"
	Cancelled = "the job is cancelled"
	Addressed = "three jobs run on two addresses"
)

// Lives are those whose calls differ.
func Lives() []Life {
	return []Life{
		// The machine switches itself off when its job is done, and is seen to be off or not.
		{Name: JobRuns, Jobs: 1, Perhaps: []string{"/status/stop"}, Drive: jobsRun(1)},
		{
			// Machines that are made at the same time must not get each other's ids.
			Name: "three jobs run", Jobs: 3, Only: []string{"/clone"}, Drive: jobsRun(3),
		},
		{
			// The machine is up when nobody needs it any more: its runner is removed, and it is
			// switched off.
			Name: Cancelled, Jobs: 1, Guest: idle,
			Drive: func(w *World) {
				job := w.Fleet.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}})[0]
				w.Fleet.Eventually("the machine being up", func() (bool, string) {
					return w.trap.has("start"), "no VM was started"
				})

				if err := w.Fleet.GitHub.Cancel(job.ID); err != nil {
					w.Fleet.T.Error(err)
				}

				close(w.cancelled)
			},
		},
		{
			// The third machine gets an address that was another's: it has to be free, and must
			// not be so too early.
			Name: Addressed, Jobs: 3, Drive: jobsRun(3),
			Addresses: []v1alpha1.AddressRange{"10.9.0.10-10.9.0.11"},
			Only:      []string{patternAddress, patternCleaned, patternFinalizer, "/clone", "/qemu/VM"},
		},
	}
}

func jobsRun(n int) func(w *World) {
	return func(w *World) {
		w.Queue(n)
		w.Fleet.EventuallyDone(n)
	}
}

// Calls are those of the life that the operator is killed at, of what several such lives have
// called: what came in each of them, and what is not known from earlier lives unless the life is
// about it. A look is taken again until it shows what is waited for: how often that is differs
// from life to life, and only the first one is meant.
func (l Life) Calls(lives [][]Call, known map[Call]bool) []Call {
	return slices.DeleteFunc(slices.Clone(lives[0]), func(c Call) bool {
		ends := func(end string) bool { return strings.HasSuffix(c.Pattern, end) }

		if !c.changes() && c.Nth > 1 || slices.ContainsFunc(lives, func(calls []Call) bool { return !slices.Contains(calls, c) }) {
			return true
		}

		if len(l.Only) == 0 {
			return known[c] || slices.ContainsFunc(l.Perhaps, ends)
		}

		return !slices.ContainsFunc(l.Only, ends) ||
			(l.Addresses == nil && known[c]) || (l.Addresses != nil && c.Nth > 1)
	})
}

// idle is a guest whose runner comes up when the job is gone, and that stays up whatever
// becomes of the runner.
func idle(t testing.TB, w *World) func(pve.GuestVM) {
	t.Helper()

	run := fleet.Guest(t)

	return func(vm pve.GuestVM) {
		select {
		case <-w.cancelled:
		case <-vm.Context.Done():
		}

		run(vm)
		<-vm.Context.Done()
	}
}

// World is one operator's world, for one life.
type World struct {
	Fleet     *fleet.Fleet
	Operators *operators
	// Standby is the replica that waits to lead, where there is one.
	Standby *operators
	Watch   *watch
	// Addresses are watched where the life has a pool of them.
	Addresses *fleet.Addresses
	trap      *trap
	cancelled chan struct{}
}

// Queue queues jobs at the forge.
func (w *World) Queue(jobs int) {
	w.Fleet.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: jobs})
}

// NewWorld makes the world, with the trap set.
func NewWorld(t testing.TB, env *kube.Env, binary string, life Life, at *Boundary) *World {
	t.Helper()

	return newWorld(t, env, binary, life, at, alone())
}

func newWorld(
	t testing.TB, env *kube.Env, binary string, life Life, at *Boundary, election map[string]any,
) *World {
	t.Helper()

	w := &World{cancelled: make(chan struct{})}
	model := fleet.Model()

	if life.Guest != nil {
		model.Guest.Script = life.Guest(t, w)
	}

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Patience = patience
	// Webhooks that found no operator are made up for by asking.
	f.Runners.JobSilence = time.Second
	f.Runners.OrphanInterval = 500 * time.Millisecond

	w.Fleet, w.Watch = f, newWatch(f)
	w.trap = newTrap(at, func() { w.Operators.kill() }, t.Errorf)
	forge := w.trap.forge(t, f)
	f.Runners.PlatformURLs = []string{forge}
	way, areas := f.Env.Config, []string{config.AreaRunners}

	if life.Addresses != nil {
		w.Addresses = f.WatchAddresses()
		way, areas = w.trap.kube(t, f), append(areas, config.AreaNetworking)
	}

	w.Operators = newOperators(t, f, binary, election, way, areas...)
	t.Cleanup(f.PVE.OnCall(w.trap.onCall(f.PVE)))
	f.Front.Serve(w.trap.webhooks(w.Operators.front))

	template := f.NewTemplate()
	template.Spec.Bootstrap.Config.GitHub.APIURL = forge

	if life.Addresses != nil {
		template.Spec.Network = &v1alpha1.MachineNetwork{
			Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{Pool: &v1alpha1.AddressPool{
				Addresses: life.Addresses, PrefixLengthV4: prefixLength,
			}},
		}
	}

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

	if w.Standby != nil {
		w.Standby.kill()
	}

	free := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	in := client.InNamespace(w.Fleet.Namespace)

	var claims v1alpha1.MachineClaimList
	if err := w.Fleet.Client.List(ctx, &claims, in); err != nil {
		w.Fleet.T.Error(err)
	}

	for i := range claims.Items {
		if err := client.IgnoreNotFound(w.Fleet.Client.Patch(ctx, &claims.Items[i], free)); err != nil {
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
		if err := client.IgnoreNotFound(w.Fleet.Client.Patch(ctx, obj, free)); err != nil {
			w.Fleet.T.Error(err)
		}
	}
}

// Verdict tells what must not have been.
func (w *World) Verdict() []string {
	out := w.Watch.Verdict()
	if w.Addresses != nil {
		out = append(out, w.Addresses.Verdict(w.Watch.Claims())...)
	}

	return out
}

// Run lives the life to its end: the jobs are over by the operator's own objects, and
// nothing is left.
func (w *World) Run(life Life) {
	life.Drive(w)
	w.Fleet.Eventually("all jobs being completed in the ledger", func() (bool, string) {
		var jobs v1alpha1.RunnerJobList
		if err := w.Fleet.Client.List(w.Fleet.T.Context(), &jobs, client.InNamespace(w.Fleet.Namespace)); err != nil {
			return false, err.Error()
		}

		for i := range jobs.Items {
			if jobs.Items[i].Spec.State != v1alpha1.JobCompleted {
				return false, jobs.Items[i].Name + " is " + string(jobs.Items[i].Spec.State)
			}
		}

		return len(jobs.Items) == life.Jobs, fmt.Sprintf("%d jobs are known", len(jobs.Items))
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

// Calls are those of the world so far.
func (w *World) Calls() []Call { return w.trap.all() }
