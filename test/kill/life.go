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
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	// waitTimeout limits each wait.
	waitTimeout = time.Minute
	// prefixLength is the prefix length of the machines' subnet.
	prefixLength = 24
)

// Lifecycle describes the lifecycle of one or several jobs and their machines.
type Lifecycle struct {
	Name string
	// Guest returns the guest of the machines. If it is nil, the guest runs the job and powers off.
	Guest func(t testing.TB, w *Fixture) func(pve.GuestVM)
	// Jobs is the number of jobs.
	Jobs int
	// KillSuffixes, if set, restricts the kills to calls whose pattern ends with one of these.
	KillSuffixes []string
	// OptionalSuffixes are the pattern endings of calls that depend on timing, so that they do not occur in
	// every run. The operator is not killed at these calls in this lifecycle, but in another one where they
	// always occur.
	OptionalSuffixes []string
	// Addresses, if set, is the pool of the machines' addresses. The operator also runs the networking area, and
	// is killed at its writes of addresses to the API server. It is killed at the first call of each of
	// KillSuffixes, also if an earlier lifecycle has the same call.
	Addresses []v1alpha1.AddressRange
	// IsBound is true if each machine is bound to one job, whose state only the machine reports. The operator is also killed
	// at its writes of the jobs' states to the API server.
	IsBound bool
	// Drive queues the jobs, acts as a user of the CI platform, and returns when the jobs have ended.
	Drive func(w *Fixture)
}

// Names of lifecycles.
const (
	JobRuns   = "the job runs"
	Cancelled = "the job is cancelled"
	Addressed = "three jobs run on two addresses"
	Bound     = "a job runs on the machine that is bound to it"
)

// Lifecycles returns lifecycles that differ in their calls.
func Lifecycles() []Lifecycle {
	return []Lifecycle{
		// The machine powers itself off when its job is done. The operator may stop it before it has noticed that.
		{Name: JobRuns, Jobs: 1, OptionalSuffixes: []string{"/status/stop"}, Drive: newJobsDriver(1)},
		{
			// Machines that are created at the same time must not get the same id.
			Name: "three jobs run", Jobs: 3, KillSuffixes: []string{"/clone"}, Drive: newJobsDriver(3),
		},
		{
			// The machine runs when its job is cancelled. Its runner is deleted, and the machine is stopped.
			Name: Cancelled, Jobs: 1, Guest: newIdleGuest,
			Drive: func(w *Fixture) {
				job := w.Fleet.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}})[0]
				w.Fleet.Eventually("the start of the machine", func() (bool, string) {
					return w.trap.hasCalled("start"), "no VM was started"
				})

				if err := w.Fleet.GitHub.Cancel(job.ID); err != nil {
					w.Fleet.T.Error(err)
				}

				close(w.cancelled)
			},
		},
		{
			// The third machine gets the address of a deleted machine. The operator must release that address, but not
			// before the machine is deleted.
			Name: Addressed, Jobs: 3, Drive: newJobsDriver(3),
			Addresses:    []v1alpha1.AddressRange{"10.9.0.10-10.9.0.11"},
			KillSuffixes: []string{patternAddress, patternCleaned, patternFinalizer, "/clone", "/qemu/VM"},
		},
		{
			// Only the RunnerJob has what the machine has reported. The next operator must not start the job again.
			Name: Bound, Jobs: 1, IsBound: true, Guest: newBoundGuest, Drive: newBoundDriver(1),
			KillSuffixes: []string{patternRunning, patternCompleted, "/clone", "/status/start", "/qemu/VM"},
		},
	}
}

func newJobsDriver(n int) func(w *Fixture) {
	return func(w *Fixture) {
		w.QueueJobs(n)
		w.Fleet.EventuallyJobsDone(n)
	}
}

// SelectCalls returns the calls at which the operator is killed, from the calls of several runs of the
// lifecycle. It selects calls that occur in every run. It leaves out calls that are known from earlier
// lifecycles, unless the lifecycle has addresses. Of repeated reads, it selects only the first, because the
// number of reads while the operator polls differs from run to run.
func (l Lifecycle) SelectCalls(runs [][]Call, known map[Call]bool) []Call {
	return slices.DeleteFunc(slices.Clone(runs[0]), func(c Call) bool {
		ends := func(end string) bool { return strings.HasSuffix(c.Pattern, end) }

		if !c.isWrite() && c.Nth > 1 || slices.ContainsFunc(runs, func(calls []Call) bool { return !slices.Contains(calls, c) }) {
			return true
		}

		if len(l.KillSuffixes) == 0 {
			return known[c] || slices.ContainsFunc(l.OptionalSuffixes, ends)
		}

		return !slices.ContainsFunc(l.KillSuffixes, ends) ||
			(l.Addresses == nil && known[c]) || (l.Addresses != nil && c.Nth > 1)
	})
}

// newIdleGuest returns a guest that starts its runner after the job was cancelled, and keeps the machine
// running after the runner has ended.
func newIdleGuest(t testing.TB, w *Fixture) func(pve.GuestVM) {
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

// Fixture is the environment of one lifecycle.
type Fixture struct {
	Fleet     *fleet.Fleet
	Operators *operatorRunner
	// Standby is a second replica that is not the leader. It is nil if there is only one replica.
	Standby  *operatorRunner
	Machines *machineWatcher
	// Addresses watches the addresses. It is nil if the lifecycle has no pool of addresses.
	Addresses *fleet.AddressWatcher
	// sender sends the jobs if machines are bound to them. Otherwise it is nil.
	sender    *generictest.Server
	trap      *trap
	cancelled chan struct{}
}

// QueueJobs queues jobs at the CI platform.
func (w *Fixture) QueueJobs(jobs int) {
	w.Fleet.GitHub.Queue(control.JobSpec{Labels: []string{"linux"}, Count: jobs})
}

// NewFixture sets up an environment in which the operator is killed at a boundary. If the boundary is nil,
// the operator is not killed.
func NewFixture(t testing.TB, env *kube.Env, binary string, life Lifecycle, boundary *Boundary) *Fixture {
	t.Helper()

	return newFixture(t, env, binary, life, boundary, noElection())
}

func newFixture(
	t testing.TB, env *kube.Env, binary string, life Lifecycle, boundary *Boundary, election map[string]any,
) *Fixture {
	t.Helper()

	w := &Fixture{cancelled: make(chan struct{})}
	model := fleet.Model()

	if life.Guest != nil {
		model.Guest.Script = life.Guest(t, w)
	}

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Timeout = waitTimeout
	// The operator finds jobs of lost webhooks by polling.
	f.Runners.JobSilence = time.Second
	f.Runners.OrphanInterval = 500 * time.Millisecond

	w.Fleet, w.Machines = f, newMachineWatcher(f)
	w.trap = newTrap(boundary, func() { w.Operators.kill() }, t.Errorf)
	forge := w.trap.startForgeProxy(t, f)
	f.Runners.PlatformURLs = []string{forge}
	restConfig, areas := f.Env.Config, []string{config.AreaRunners}

	if life.Addresses != nil {
		w.Addresses = f.WatchAddresses()
		areas = append(areas, config.AreaNetworking)
	}

	if life.Addresses != nil || life.IsBound {
		restConfig = w.trap.startKubeProxy(t, f)
	}

	w.Operators = newOperatorRunner(t, f, binary, election, restConfig, areas...)
	t.Cleanup(f.PVE.OnCall(w.trap.onCall(f.PVE)))
	f.Front.Serve(w.trap.wrapWebhooks(w.Operators.front))

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

	if life.IsBound {
		w.sender = startSender(f)
		pool.Spec.Workload = newBoundWorkload(pool.Spec.Workload.Webhook)
	}

	f.CreateCluster(f.NewCluster())
	f.Create(template)
	f.Create(pool)
	t.Cleanup(w.cleanUp)

	if err := w.Operators.start(t.Context()); err != nil {
		t.Fatal(err)
	}

	f.EventuallyReady(f.NewPool(0))

	return w
}

// cleanUp kills the operators and deletes all objects without their finalizers. Otherwise the next operator
// at this API server would reconcile them.
func (w *Fixture) cleanUp() {
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout)
	defer cancel()

	w.Operators.kill()

	if w.Standby != nil {
		w.Standby.kill()
	}

	removeFinalizers := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	inNamespace := client.InNamespace(w.Fleet.Namespace)

	var claims v1alpha1.MachineClaimList
	if err := w.Fleet.Client.List(ctx, &claims, inNamespace); err != nil {
		w.Fleet.T.Error(err)
	}

	for i := range claims.Items {
		if err := client.IgnoreNotFound(w.Fleet.Client.Patch(ctx, &claims.Items[i], removeFinalizers)); err != nil {
			w.Fleet.T.Error(err)
		}
	}

	for _, kind := range []client.Object{
		&v1alpha1.RunnerPool{}, &v1alpha1.HypervisorMachineTemplate{}, &v1alpha1.MachineClaim{}, &v1alpha1.RunnerJob{},
	} {
		if err := w.Fleet.Client.DeleteAllOf(ctx, kind, inNamespace); err != nil {
			w.Fleet.T.Error(err)
		}
	}

	for _, obj := range []client.Object{w.Fleet.NewPool(0), w.Fleet.NewTemplate()} {
		if err := client.IgnoreNotFound(w.Fleet.Client.Patch(ctx, obj, removeFinalizers)); err != nil {
			w.Fleet.T.Error(err)
		}
	}
}

// Violations returns the violations of all watched invariants.
func (w *Fixture) Violations() []string {
	out := w.Machines.Violations()
	if w.Addresses != nil {
		out = append(out, w.Addresses.Violations(w.Machines.ClaimUIDs())...)
	}

	return out
}

// Run runs the lifecycle until all RunnerJobs are completed and nothing is left.
func (w *Fixture) Run(life Lifecycle) {
	life.Drive(w)
	w.Fleet.Eventually("the completion of all RunnerJobs", func() (bool, string) {
		var jobs v1alpha1.RunnerJobList
		if err := w.Fleet.Client.List(w.Fleet.T.Context(), &jobs, client.InNamespace(w.Fleet.Namespace)); err != nil {
			return false, err.Error()
		}

		for i := range jobs.Items {
			if jobs.Items[i].Spec.State != v1alpha1.JobCompleted {
				return false, jobs.Items[i].Name + " is " + string(jobs.Items[i].Spec.State)
			}
		}

		return len(jobs.Items) == life.Jobs, fmt.Sprintf("%d RunnerJobs exist", len(jobs.Items))
	})
	w.Fleet.EventuallyClean()
}

// Restart waits until the operator was killed, and starts the next one.
func (w *Fixture) Restart() error {
	defer close(w.trap.restarted)

	select {
	case <-w.trap.killed:
	case <-time.After(waitTimeout):
		return fmt.Errorf("the boundary was not reached: the calls were %v", w.Calls())
	}

	if w.trap.boundary.Timing == Before && w.trap.boundary.Call.Server == serverPVE {
		<-w.trap.callDone // the fault for the killed call is removed before the next operator makes calls
	}

	return w.Operators.start(w.Fleet.T.Context())
}

// Calls returns all calls so far.
func (w *Fixture) Calls() []Call { return w.trap.listCalls() }
