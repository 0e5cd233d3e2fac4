// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/doctor"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/live"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// TestInstallation: what doctor says of an installation, and how it ends.
func TestInstallation(t *testing.T) { //nolint:tparallel // one step after the other
	t.Parallel()

	i := installation{kube.Start(t, kube.WithScheme(live.AddToScheme),
		kube.WithCRDs("../../deploy/crds", "../../deploy/base/namespace.yaml", "../../deploy/rbac", "../../deploy/base/tenancy.yaml"))}

	t.Run("nothing is wrong", i.nothingIsWrong)
	t.Run("objects", i.objects)
	t.Run("nobody looks", i.nobodyLooks)
	t.Run("operators", i.operators)
	t.Run("kinds and roles", i.kindsAndRoles)
	t.Run("forbidden", i.forbidden)
	t.Run("command line", i.commandLine)
	t.Run("store of logs", i.storeOfLogs)
	t.Run("caches", i.caches)
	t.Run("receiver", i.receiver)

	if !t.Run("life", i.life) {
		return
	}

	// The kinds go at last, and nothing is found to do where all is gone.
	for _, want := range []string{"HyperFleet is removed", "There are no objects of HyperFleet"} {
		execute(t, i.Config, "uninstall", "--yes", "--timeout", "1m").says(t, want)
		i.gone(t)
	}
}

// gone waits until a kind is.
func (i installation) gone(t *testing.T) {
	t.Helper()

	crd := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "apiextensions.k8s.io/v1", Kind: "CustomResourceDefinition"}}

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		err := i.Client.Get(t.Context(), client.ObjectKey{Name: "machineclaims.hyperfleet.io"}, crd)
		if apierrors.IsNotFound(err) {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("the kind is still there: %v", err)
		}
	}
}

// life tries an installation that runs, and removes it.
func (i installation) life(t *testing.T) {
	var silent atomic.Bool

	model, guest := fleet.Model(), fleet.Guest(t)
	model.Guest.Script = func(vm pve.GuestVM) {
		if silent.Load() {
			<-vm.Context.Done()
		} else {
			guest(vm)
		}
	}

	f := fleet.New(t, i.Env, fleet.Options{Model: model})
	f.Populate(2)
	f.Start()
	f.EventuallyReady(f.NewPool(0))
	i.lease(t, "hyperfleet-runners", "the fleet's operator", -time.Hour) // which holds no Lease

	tries := trials{f}
	tries.works(t)
	tries.isAsked(t)

	silent.Store(true)
	tries.fails(t, []string{"placed", "cloned and configured", "powered on", "removed"},
		"its bootstrap service has not reported: is it in the template", "--try-timeout", "5s")
	silent.Store(false)

	f.PVE.SetPrivilege("HyperFleetTemplate", "VM.Clone", false)
	tries.fails(t, nil, "lacks VM.Clone on /vms/", "--try-timeout", "20s") // it may be placed before the template is known to lack it
	f.PVE.SetPrivilege("HyperFleetTemplate", "VM.Clone", true)
	f.EventuallyReady(f.NewTemplate())
	uninstalled(t, f)
}

// trials are machines that doctor makes to try a template.
type trials struct{ *fleet.Fleet }

func (f trials) args(more ...string) []string {
	return append([]string{"doctor", "-n", f.Namespace, "--try", fleet.Template}, more...)
}

// try gives what became of the machine, of which nothing is left.
func (f trials) try(t *testing.T, args ...string) (executed, *doctor.Trial) {
	t.Helper()

	got := execute(t, f.Env.Config, f.args(append(args, "--yes", "--output", "json")...)...)

	var report doctor.Report

	must(t, json.Unmarshal([]byte(got.out), &report))

	if report.Try == nil || !report.Try.Removed || report.Try.Alive == (report.Problems > 0) {
		t.Fatalf("%v: %s", got.err, got.out)
	}

	f.nothingLeft(t)

	return got, report.Try
}

// nothingLeft makes sure that a trial left nothing, anywhere.
func (f trials) nothingLeft(t *testing.T) {
	t.Helper()

	var claims v1alpha1.MachineClaimList

	must(t, f.Client.List(t.Context(), &claims, client.InNamespace(f.Namespace)))

	state := f.PVE.Snapshot()
	if len(claims.Items) > 0 || len(state.Made()) > 0 || len(state.ISOs()) > 0 || len(f.GitHub.State().Runners) > 0 {
		t.Errorf("left: %d claims, machines %+v, ISOs %+v, runners %+v", len(claims.Items), state.Made(), state.ISOs(), f.GitHub.State().Runners)
	}
}

func phasesOf(tried *doctor.Trial) []string {
	var out []string
	for _, p := range tried.Phases {
		out = append(out, p.Name)
	}

	return out
}

func (f trials) works(t *testing.T) {
	t.Helper()

	got, tried := f.try(t)
	if got.err != nil || !tried.Alive || tried.VM == "" || tried.Node == "" {
		t.Errorf("%v:\n%s", got.err, got.out)
	}

	if diff := cmp.Diff([]string{"placed", "cloned and configured", "powered on", "first report of the guest", "removed"}, phasesOf(tried)); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// fails: what was missing is told, and the machine is removed all the same.
func (f trials) fails(t *testing.T, phases []string, want string, args ...string) {
	t.Helper()

	got, tried := f.try(t, args...)
	if cli.ExitCode(got.err) != cli.ExitFailed || tried.Alive || !strings.Contains(tried.Message, want) {
		t.Errorf("%v, want %q:\n%s", got.err, want, got.out)
	}

	if diff := cmp.Diff(phases, phasesOf(tried)); phases != nil && diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// isAsked: a person is asked, and sees what goes on; without a yes nothing is made.
func (f trials) isAsked(t *testing.T) {
	t.Helper()

	answer(t, "y\n", f.Env.Config, f.args()...).says(t,
		"Make one machine (2 CPUs, 2Gi memory) from template "+f.Namespace+"/template on HypervisorCluster "+f.Cluster+
			", with a runner on github-actions, and remove both? [y/N]",
		"placed after ", ": VM ", "powered on after ", "first report of the guest after ", "removed after ")
	f.nothingLeft(t)

	clones := func() int {
		return len(slices.DeleteFunc(f.PVE.Calls(), func(c pve.Call) bool { return !strings.HasSuffix(c.Path, "/clone") }))
	}
	made := clones()

	for _, no := range []string{"", "n\n", "maybe\n"} {
		answer(t, no, f.Env.Config, f.args()...).fails(t, cli.ExitFailed, "nothing was made: answer y, or give --yes")
	}

	if n := clones(); n != made {
		t.Errorf("%d machines were made without a yes", n-made)
	}
}

// running waits until a job runs, and gives its claim.
func running(f *fleet.Fleet) *v1alpha1.MachineClaim {
	var found *v1alpha1.MachineClaim

	f.Eventually("a job running", func() (bool, string) {
		var claims v1alpha1.MachineClaimList
		if err := f.Client.List(f.T.Context(), &claims, client.InNamespace(f.Namespace)); err != nil {
			return false, err.Error()
		}

		if len(claims.Items) != 1 || claims.Items[0].Status.VMRef == nil {
			return false, fmt.Sprintf("%d claims", len(claims.Items))
		}

		found = &claims.Items[0]
		job := f.GitHub.State().Jobs[0]

		return job.Status == "in_progress", job.Status
	})

	return found
}

// untilSaid interrupts a command when it has said something.
type untilSaid struct {
	bytes.Buffer

	what string
	stop func()
}

// Write looks for that.
func (u *untilSaid) Write(text []byte) (int, error) {
	n, err := u.Buffer.Write(text)
	if strings.Contains(u.String(), u.what) {
		u.stop()
	}

	return n, err
}

// uninstalled: an installation is removed in order: a job that runs is waited for, nothing is left
// on the hypervisor or at the CI platform, and nobody else's VM was touched. What does not go is
// named, and nothing that could remove it is taken away.
func uninstalled(t *testing.T, f *fleet.Fleet) {
	t.Helper()

	before := f.PVE.Snapshot()
	over := filepath.Join(t.TempDir(), "over")
	f.GitHub.Queue(control.JobSpec{
		Labels: []string{"linux"}, Command: "while [ ! -e " + over + " ]; do sleep 0.05; done",
	})

	claim := running(f)
	where := "VM " + claim.Status.VMRef.VMID + " on node " + claim.Status.VMRef.Node

	execute(t, f.Env.Config, "uninstall").says(t, "1 machine\n", where, "1 of kind RunnerPool", "Nothing was changed")
	withoutOperator(t, f, where)

	// The operator waits for the job, and goes on.
	f.Start()
	f.EventuallyCondition(claim, "Deregistered", metav1.ConditionFalse, "RunnerBusy")
	must(t, os.WriteFile(over, nil, 0o600))
	drained(t, f)

	got := execute(t, f.Env.Config, "uninstall", "--yes", "--keep-crds", "--timeout", "3m")
	got.says(t, "HyperFleet is removed")

	if strings.Contains(got.out, "remove the kinds") {
		t.Errorf("it says that it removes the kinds, which it leaves:\n%s", got.out)
	}

	if left := f.Leftovers(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	if done := f.JobsDone(); done != 1 {
		t.Errorf("%d jobs are done, want the one that ran", done)
	}

	if now := f.PVE.Snapshot(); len(now.VMs) != len(before.VMs) {
		t.Errorf("%d VMs, want the %d of others", len(now.VMs), len(before.VMs))
	}

	policy := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{
		APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingAdmissionPolicy",
	}}
	if err := f.Client.Get(t.Context(), client.ObjectKey{Name: "hyperfleet-allowed-namespaces"}, policy); !apierrors.IsNotFound(err) {
		t.Errorf("the admission policy is still there: %v", err)
	}

	f.Stop()
}

// withoutOperator: nobody removes machines while no operator runs: so it is said, and nothing else
// goes.
func withoutOperator(t *testing.T, f *fleet.Fleet, where string) {
	t.Helper()
	f.Stop()

	ctx, stop := context.WithCancel(t.Context())
	out := &untilSaid{what: "left: 1 machine", stop: stop}

	err := run(ctx, t, strings.NewReader(""), out, f.Env.Config, "uninstall", "--yes", "--timeout", "1m")
	executed{out: out.String(), err: err}.fails(t, cli.ExitFailed, "drain the machines", where, "run this again")

	if err := f.Client.Get(t.Context(), client.ObjectKey{Name: f.Cluster}, f.NewCluster()); err != nil {
		t.Errorf("the HypervisorCluster was removed before its machines: %v", err)
	}
}

// drained removes the machines, and nothing else.
func drained(t *testing.T, f *fleet.Fleet) {
	t.Helper()

	execute(t, f.Env.Config, "uninstall", "--drain", "--keep-crds").fails(t, cli.ExitUsage)
	execute(t, f.Env.Config, "uninstall", "--drain", "--yes", "--timeout", "3m").says(t, "All machines are gone, and the pools are paused")

	if left := f.Leftovers(); len(left) > 0 {
		t.Errorf("left behind by --drain: %v", left)
	}

	pool := f.NewPool(0)
	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil || !pool.Spec.Paused {
		t.Errorf("the pool after --drain: paused = %v, %v", pool.Spec.Paused, err)
	}
}
