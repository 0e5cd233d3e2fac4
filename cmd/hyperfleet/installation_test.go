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
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/doctor"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/hosts/linux"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// TestInstallation checks what doctor reports about an installation, and that uninstall deletes the installation.
func TestInstallation(t *testing.T) { //nolint:tparallel // one step after the other
	t.Parallel()

	i := installation{kube.Start(t, kube.WithCRDs(
		"../../deploy/crds", "../../deploy/base/namespace.yaml", "../../deploy/rbac", "../../deploy/base/tenancy.yaml"))}

	t.Run("nothing is wrong", i.testNoProblems)
	t.Run("objects", i.testObjects)
	t.Run("stuck objects", i.testStuckObjects)
	t.Run("operators", i.testOperators)
	t.Run("shards", i.testShards)
	t.Run("kinds and roles", i.testCRDsAndRoles)
	t.Run("forbidden", i.testForbidden)
	t.Run("command line", i.testCommandLine)
	t.Run("store of logs", i.testLogStore)
	t.Run("caches", i.testCaches)
	t.Run("receiver", i.testReceiver)

	if !t.Run("life", i.testLifecycle) {
		return
	}

	// The CRDs are deleted last. A second run finds nothing to delete.
	for _, want := range []string{"HyperFleet was deleted", "There are no objects of HyperFleet"} {
		execute(t, i.Config, "uninstall", "--yes", "--timeout", "1m").expectSuccess(t, want)
		i.waitForDeletion(t)
	}
}

// waitForDeletion waits until the CRD of MachineClaims is deleted.
func (i installation) waitForDeletion(t *testing.T) {
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

// testLifecycle tests templates of a running installation with doctor, and then uninstalls it.
func (i installation) testLifecycle(t *testing.T) {
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
	i.newLease(t, "hyperfleet-runners", "the fleet's operator", -time.Hour) // the fleet's operator holds no Lease itself

	tries := trials{f}
	tries.checkSuccess(t)
	tries.checkConfirmation(t)

	silent.Store(true)
	tries.checkFailure(t, []string{"placed", "cloned and configured", "powered on", "removed"},
		"its bootstrap service has not reported: check that the template contains the service", "--try-timeout", "5s")
	silent.Store(false)

	f.PVE.SetPrivilege("HyperFleetTemplate", "VM.Clone", false)
	tries.checkFailure(t, nil, "lacks VM.Clone on /vms/", "--try-timeout", "20s") // the machine may be placed before the operator notices the missing privilege
	f.PVE.SetPrivilege("HyperFleetTemplate", "VM.Clone", true)
	f.EventuallyReady(f.NewTemplate())
	checkUninstall(t, f)
}

// trials runs doctor with --try.
type trials struct{ *fleet.Fleet }

func (f trials) args(more ...string) []string {
	return append([]string{"doctor", "-n", f.Namespace, "--try", fleet.Template}, more...)
}

// runTrial runs a trial, and returns its result. It checks that nothing of the machine remains.
func (f trials) runTrial(t *testing.T, args ...string) (executed, *doctor.Trial) {
	t.Helper()

	got := execute(t, f.Env.Config, f.args(append(args, "--yes", "--output", "json")...)...)

	var report doctor.Report

	must.Do(t, json.Unmarshal([]byte(got.out), &report))

	if report.Trial == nil || !report.Trial.Removed || report.Trial.Alive == (report.Problems > 0) {
		t.Fatalf("%v: %s", got.err, got.out)
	}

	f.checkNothingLeft(t)

	return got, report.Trial
}

// checkNothingLeft checks that no claim, VM, ISO image or runner of a trial remains.
func (f trials) checkNothingLeft(t *testing.T) {
	t.Helper()

	var claims v1alpha1.MachineClaimList

	must.Do(t, f.Client.List(t.Context(), &claims, client.InNamespace(f.Namespace)))

	state := f.PVE.Snapshot()
	if len(claims.Items) > 0 || len(state.CreatedVMs()) > 0 || len(state.ISOs()) > 0 || len(f.GitHub.State().Runners) > 0 {
		t.Errorf("left: %d claims, machines %+v, ISOs %+v, runners %+v", len(claims.Items), state.CreatedVMs(), state.ISOs(), f.GitHub.State().Runners)
	}
}

func phasesOf(tried *doctor.Trial) []string {
	var out []string
	for _, p := range tried.Phases {
		out = append(out, p.Name)
	}

	return out
}

func (f trials) checkSuccess(t *testing.T) {
	t.Helper()

	got, tried := f.runTrial(t)
	if got.err != nil || !tried.Alive || tried.VM == "" || tried.Node == "" {
		t.Errorf("%v:\n%s", got.err, got.out)
	}

	if diff := cmp.Diff([]string{"placed", "cloned and configured", "powered on", "first report of the guest", "removed"}, phasesOf(tried)); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// checkFailure checks that doctor reports why a machine failed, and deletes the machine.
func (f trials) checkFailure(t *testing.T, phases []string, want string, args ...string) {
	t.Helper()

	got, tried := f.runTrial(t, args...)
	if cli.ExitCode(got.err) != cli.ExitFailed || tried.Alive || !strings.Contains(tried.Message, want) {
		t.Errorf("%v, want %q:\n%s", got.err, want, got.out)
	}

	if diff := cmp.Diff(phases, phasesOf(tried)); phases != nil && diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// checkConfirmation checks that doctor asks for confirmation and prints its progress, and that it creates nothing without a yes.
func (f trials) checkConfirmation(t *testing.T) {
	t.Helper()

	executeWithInput(t, "y\n", f.Env.Config, f.args()...).expectSuccess(t,
		"Create one machine (2 CPUs, 2Gi memory) from template "+f.Namespace+"/template on HypervisorCluster "+f.Cluster+
			", with a runner on github-actions, and delete both afterwards? [y/N]",
		"placed after ", ": VM ", "powered on after ", "first report of the guest after ", "removed after ")
	f.checkNothingLeft(t)

	clones := func() int {
		return len(slices.DeleteFunc(f.PVE.Calls(), func(c pve.Call) bool { return !strings.HasSuffix(c.Path, "/clone") }))
	}
	made := clones()

	for _, no := range []string{"", "n\n", "maybe\n"} {
		executeWithInput(t, no, f.Env.Config, f.args()...).expectFailure(t, cli.ExitFailed, "nothing was created: confirm with y, or use --yes")
	}

	if n := clones(); n != made {
		t.Errorf("%d machines were created without confirmation", n-made)
	}
}

// waitForRunningJob waits until a job runs, and returns the claim of its machine.
func waitForRunningJob(f *fleet.Fleet) *v1alpha1.MachineClaim {
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

// stopWriter is a writer that stops a command when its output contains a text.
type stopWriter struct {
	bytes.Buffer

	text string
	stop func()
}

// Write collects the output, and calls stop if the output contains the text.
func (u *stopWriter) Write(text []byte) (int, error) {
	n, err := u.Buffer.Write(text)
	if strings.Contains(u.String(), u.text) {
		u.stop()
	}

	return n, err
}

// checkUninstall checks that uninstall waits for a running job, leaves nothing on the hypervisor or at the CI platform,
// and does not touch VMs of others. If objects remain, it lists them and keeps the operator.
func checkUninstall(t *testing.T, f *fleet.Fleet) {
	t.Helper()

	before := f.PVE.Snapshot()
	over := filepath.Join(t.TempDir(), "over")
	f.GitHub.Queue(control.JobSpec{
		Labels: []string{"linux"}, Command: "while [ ! -e " + over + " ]; do sleep 0.05; done",
	})

	claim := waitForRunningJob(f)
	where := "VM " + claim.Status.VMRef.VMID + " on node " + claim.Status.VMRef.Node

	execute(t, f.Env.Config, "uninstall").expectSuccess(t, "1 machine\n", where, "1 of kind RunnerPool", "Nothing was changed")
	checkInventory(t, f, claim)
	checkWithoutOperator(t, f, where)

	// The operator waits until the job has ended, and then deletes the machine.
	f.Start()
	f.EventuallyCondition(claim, "Deregistered", metav1.ConditionFalse, "RunnerBusy")
	must.Do(t, os.WriteFile(over, nil, 0o600))
	checkDrain(t, f)

	// The objects that needed this Secret were deleted without the operator.
	kept := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: "kept", Finalizers: []string{
		v1alpha1.FinalizerKeptSecret + "hosts", v1alpha1.FinalizerKeptSecret + "runners", "example.com/other",
	}}}
	f.Env.Create(t, kept)

	shard := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: f.Namespace, Name: "hyperfleet-runners-a.namespace", Labels: map[string]string{"app.kubernetes.io/part-of": "hyperfleet"},
		},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "hyperfleet-shard-namespace"},
	}
	f.Env.Create(t, shard)

	got := execute(t, f.Env.Config, "uninstall", "--yes", "--keep-crds", "--timeout", "3m")
	got.expectSuccess(t, "HyperFleet was deleted")

	must.Do(t, f.Client.Get(t.Context(), client.ObjectKeyFromObject(kept), kept))

	if !slices.Equal(kept.Finalizers, []string{"example.com/other"}) {
		t.Errorf("a Secret has the finalizers %v", kept.Finalizers)
	}

	if strings.Contains(got.out, "delete the CRDs") {
		t.Errorf("the output says that the command deletes the CRDs, which it should keep:\n%s", got.out)
	}

	if left := f.FindLeftovers(); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}

	if done := f.CountSuccessfulJobs(); done != 1 {
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

	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(shard), shard); !apierrors.IsNotFound(err) {
		t.Errorf("the RoleBinding of a shard is still there: %v", err)
	}

	for _, name := range []string{"hyperfleet-runners", "hyperfleet-shard-cluster"} {
		role := &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "rbac.authorization.k8s.io/v1", Kind: "ClusterRole"}}
		if err := f.Client.Get(t.Context(), client.ObjectKey{Name: name}, role); !apierrors.IsNotFound(err) {
			t.Errorf("the ClusterRole %s is still there: %v", name, err)
		}
	}

	f.Stop()
}

// checkInventory checks the inventory that uninstall prints, and that it deletes nothing while there are hosts.
func checkInventory(t *testing.T, f *fleet.Fleet, claim *v1alpha1.MachineClaim) {
	t.Helper()

	hosts := &infrav1.HostFleet{
		ObjectMeta: metav1.ObjectMeta{Name: "racks", Namespace: f.Namespace}, Spec: infrav1.HostFleetSpec{HostKind: linux.Name},
	}
	f.Env.Create(t, hosts)
	execute(t, f.Env.Config, "uninstall").expectSuccess(t, "1 of kind HostFleet, which you have to delete first\n")
	execute(t, f.Env.Config, "uninstall", "--yes").expectFailure(t, cli.ExitFailed, "found 1 of kind HostFleet: these objects represent real hosts")

	var got struct {
		Machines []struct{ Namespace, Claim, ID, Node string }
		Objects  map[string]int
		Blocking map[string]int
	}

	printed := execute(t, f.Env.Config, "uninstall", "-o", "json")
	if err := json.Unmarshal([]byte(printed.out), &got); err != nil || len(got.Machines) != 1 || got.Objects["RunnerPool"] != 1 || got.Blocking["HostFleet"] != 1 {
		t.Fatalf("%v: %+v", err, printed)
	}

	if m, vm := got.Machines[0], claim.Status.VMRef; m.Namespace != claim.Namespace || m.Claim != claim.Name || m.ID != vm.VMID || m.Node != vm.Node {
		t.Errorf("the machine is %+v", m)
	}

	execute(t, f.Env.Config, "uninstall", "-o", "yaml").expectSuccess(t, "machines:\n- claim: "+claim.Name+"\n")
	execute(t, f.Env.Config, "uninstall", "--yes", "-o", "json").expectFailure(t, cli.ExitUsage, "--output json prints what exists: remove --yes")
	must.Do(t, f.Env.Client.Delete(t.Context(), hosts))
}

// checkWithoutOperator checks that uninstall reports the remaining machines if no operator runs, and deletes nothing else.
func checkWithoutOperator(t *testing.T, f *fleet.Fleet, where string) {
	t.Helper()
	f.Stop()

	ctx, stop := context.WithCancel(t.Context())
	out := &stopWriter{text: "remaining: 1 machine", stop: stop}

	err := run(ctx, t, strings.NewReader(""), out, f.Env.Config, "uninstall", "--yes", "--timeout", "1m")
	executed{out: out.String(), err: err}.expectFailure(t, cli.ExitFailed, "drain the machines", where, "run this command again")

	if err := f.Client.Get(t.Context(), client.ObjectKey{Name: f.Cluster}, f.NewCluster()); err != nil {
		t.Errorf("the HypervisorCluster was removed before its machines: %v", err)
	}
}

// checkDrain checks that --drain deletes the machines, and nothing else.
func checkDrain(t *testing.T, f *fleet.Fleet) {
	t.Helper()

	execute(t, f.Env.Config, "uninstall", "--drain", "--keep-crds").expectFailure(t, cli.ExitUsage)
	execute(t, f.Env.Config, "uninstall", "--drain", "--yes", "--timeout", "3m").expectSuccess(t, "All machines were deleted, and the pools are paused")

	if left := f.FindLeftovers(); len(left) > 0 {
		t.Errorf("left behind by --drain: %v", left)
	}

	pool := f.NewPool(0)
	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil || !pool.Spec.Paused {
		t.Errorf("the pool after --drain: paused = %v, %v", pool.Spec.Paused, err)
	}
}

// TestNothingIsInstalled checks that the commands say what is wrong if the kubeconfig names another cluster.
func TestNothingIsInstalled(t *testing.T) {
	t.Parallel()

	own := kube.Start(t)

	for _, args := range [][]string{{"doctor"}, {"jobs"}, {"job", "gh-1"}, {"top", "--once"}} {
		got := execute(t, own.Config, args...)
		if text := fmt.Sprint(got.err) + got.out; !strings.Contains(text, "HyperFleet is not installed in this cluster: choose another cluster with --context") {
			t.Errorf("%v: %s", args, text)
		}
	}
}
