// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package uninstall_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/hyperfleet/uninstall"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard()) // the fleet hands its manager a logger of its own
	os.Exit(kube.Run(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../../../deploy/crds", "../../../deploy/base/namespace.yaml", "../../../deploy/rbac",
			"../../../deploy/base/tenancy.yaml"),
		kube.WithScheme(v1alpha1.AddToScheme, infrav1.AddToScheme, apiextensionsv1.AddToScheme)))
}

// execute runs the command as a user would.
func execute(t *testing.T, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer

	cmd := uninstall.New()
	cmd.SetArgs(append(args, "--kubeconfig", env.Kubeconfig(t, env.Config)))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true

	err := cmd.ExecuteContext(t.Context())

	return out.String(), err
}

func says(t *testing.T, text string, parts ...string) {
	t.Helper()

	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("it does not say %q:\n%s", part, text)
		}
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

// An installation is removed in order: a job that runs is waited for, nothing is left on the
// hypervisor or at the CI platform, and nobody else's VM was touched. What does not go is named,
// and nothing that could remove it is taken away.
func TestUninstall(t *testing.T) {
	f := fleet.New(t, env, fleet.Options{})
	before := f.PVE.Snapshot()
	f.Populate(2)
	f.Start()
	f.EventuallyReady(f.NewPool(0))

	over := filepath.Join(t.TempDir(), "over")
	f.GitHub.Queue(control.JobSpec{
		Labels: []string{"linux"}, Command: "while [ ! -e " + over + " ]; do sleep 0.05; done",
	})

	claim := running(f)
	where := "VM " + claim.Status.VMRef.VMID + " on node " + claim.Status.VMRef.Node

	text, err := execute(t)
	if err != nil {
		t.Error(err)
	}

	says(t, text, "1 machine\n", where, "1 of kind RunnerPool", "Nothing was changed")

	// Nobody removes machines while no operator runs: so it is said, and nothing else goes.
	f.Stop()

	text, err = execute(t, "--yes", "--timeout", "20s")
	if cli.ExitCode(err) != cli.ExitFailed {
		t.Errorf("without an operator it ended with %v", err)
	}

	says(t, err.Error(), "drain the machines", where, "run this again")
	says(t, text, "left: 1 machine")

	if err := f.Client.Get(t.Context(), client.ObjectKey{Name: f.Cluster}, f.NewCluster()); err != nil {
		t.Errorf("the HypervisorCluster was removed before its machines: %v", err)
	}

	// The operator waits for the job, and goes on.
	f.Start()
	f.EventuallyCondition(claim, "Deregistered", metav1.ConditionFalse, "RunnerBusy")

	if err := os.WriteFile(over, nil, 0o600); err != nil {
		t.Fatal(err)
	}

	drained(t, f)

	text, err = execute(t, "--yes", "--keep-crds", "--timeout", "3m")
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}

	says(t, text, "HyperFleet is removed")

	if strings.Contains(text, "remove the kinds") {
		t.Errorf("it says that it removes the kinds, which it leaves:\n%s", text)
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
	kinds(t)
}

// drained removes the machines, and nothing else.
func drained(t *testing.T, f *fleet.Fleet) {
	t.Helper()

	if text, err := execute(t, "--drain", "--keep-crds"); cli.ExitCode(err) != cli.ExitUsage {
		t.Errorf("--drain with --keep-crds: %v:\n%s", err, text)
	}

	text, err := execute(t, "--drain", "--yes", "--timeout", "3m")
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}

	says(t, text, "All machines are gone, and the pools are paused")

	if left := f.Leftovers(); len(left) > 0 {
		t.Errorf("left behind by --drain: %v", left)
	}

	pool := f.NewPool(0)
	if err := f.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool); err != nil || !pool.Spec.Paused {
		t.Errorf("the pool after --drain: paused = %v, %v", pool.Spec.Paused, err)
	}
}

// kinds removes the kinds at last, and finds nothing to do where all is gone.
func kinds(t *testing.T) {
	t.Helper()

	for _, want := range []string{"HyperFleet is removed", "There are no objects of HyperFleet"} {
		text, err := execute(t, "--yes", "--timeout", "1m")
		if err != nil {
			t.Fatalf("%v:\n%s", err, text)
		}

		says(t, text, want)
		gone(t)
	}
}

func gone(t *testing.T) {
	t.Helper()

	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		var crd apiextensionsv1.CustomResourceDefinition

		err := env.Client.Get(t.Context(), client.ObjectKey{Name: "machineclaims.hyperfleet.io"}, &crd)
		if apierrors.IsNotFound(err) {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("the kind is still there: %v", err)
		}
	}
}
