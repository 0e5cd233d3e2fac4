// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cmd/internal/cli"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// try runs the command with --try on a fleet, and the answer.
func try(t *testing.T, f *fleet.Fleet, answer string, args ...string) (string, error) {
	t.Helper()

	var out bytes.Buffer

	cmd := New()
	cmd.SetArgs(append(args, "--kubeconfig", f.Env.Kubeconfig(t, f.Env.Config), "-n", f.Namespace, "--try", fleet.Template))
	cmd.SetIn(strings.NewReader(answer))
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SilenceUsage, cmd.SilenceErrors = true, true

	err := cmd.ExecuteContext(t.Context())

	return out.String(), err
}

// tried is a fleet with an operator, on an API server of its own: what the other tests expect
// is the whole of what is on theirs.
func tried(t *testing.T, change func(*pve.Model)) *fleet.Fleet {
	t.Helper()

	model := fleet.Model()
	change(&model)

	own := kube.Start(t, kube.WithCRDs("../../../deploy/crds", "../../../deploy/base/namespace.yaml", "../../../deploy/rbac"),
		kube.WithScheme(v1alpha1.AddToScheme))
	f := fleet.New(t, own, fleet.Options{Model: model})
	f.Start()
	t.Cleanup(f.Stop)
	f.Populate(1)
	f.EventuallyReady(f.NewPool(0))

	holder := "the fleet's operator" // which holds no Lease
	f.Create(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "hyperfleet-runners", Namespace: "hyperfleet-system"},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, LeaseDurationSeconds: new(int32(3600)), RenewTime: &metav1.MicroTime{Time: time.Now()},
		},
	})

	return f
}

// nothingLeft makes sure that the trial left nothing, anywhere.
func nothingLeft(t *testing.T, f *fleet.Fleet) {
	t.Helper()

	var claims v1alpha1.MachineClaimList

	must(t, f.Client.List(t.Context(), &claims, client.InNamespace(f.Namespace)))

	state := f.PVE.Snapshot()
	if len(claims.Items) > 0 || len(state.Made()) > 0 || len(state.ISOs()) > 0 || len(f.GitHub.State().Runners) > 0 {
		t.Errorf("left: %d claims, machines %+v, ISOs %+v, runners %+v", len(claims.Items), state.Made(), state.ISOs(), f.GitHub.State().Runners)
	}
}

func names(phases []TrialPhase) []string {
	var out []string
	for _, p := range phases {
		out = append(out, p.Name)
	}

	return out
}

func TestTry(t *testing.T) { //nolint:paralleltest // as all here
	f := tried(t, func(*pve.Model) {})

	out, err := try(t, f, "", "--yes", "--output", "json")

	var report Report

	must(t, json.Unmarshal([]byte(out), &report))

	got := report.Try
	if err != nil || got == nil || !got.Alive || !got.Removed || got.VM == "" || got.Node == "" {
		t.Fatalf("%v:\n%s", err, out)
	}

	if diff := cmp.Diff([]string{"placed", "cloned and configured", "powered on", "first report of the guest", "removed"}, names(got.Phases)); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}

	nothingLeft(t, f)

	// A person is asked, and sees what goes on.
	out, err = try(t, f, "y\n")
	for _, want := range []string{
		"Make one machine (2 CPUs, 2Gi memory) from template " + f.Namespace + "/template on HypervisorCluster " + f.Cluster +
			", with a runner on github-actions, and remove both? [y/N]",
		"placed after ", ": VM ", "powered on after ", "first report of the guest after ", "removed after ",
	} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v, want %q in:\n%s", err, want, out)
		}
	}

	nothingLeft(t, f)

	clones := func() int {
		return len(slices.DeleteFunc(f.PVE.Calls(), func(c pve.Call) bool { return !strings.HasSuffix(c.Path, "/clone") }))
	}
	made := clones()

	for _, answer := range []string{"", "n\n", "maybe\n"} {
		if _, err := try(t, f, answer); !errors.Is(err, errDeclined) || cli.ExitCode(err) != 1 {
			t.Errorf("answer %q: %v", answer, err)
		}
	}

	if n := clones(); n != made {
		t.Errorf("%d machines were made without a yes", n-made)
	}
}

// What was missing is told, and the machine is removed all the same.
func TestTryFails(t *testing.T) { //nolint:paralleltest // as all here
	for _, tc := range []struct {
		name   string
		change func(*pve.Model)
		// then is done when all is ready.
		then   func(*pve.Server)
		args   []string
		phases []string
		want   []string
	}{
		{
			name: "the guest never reports", change: func(m *pve.Model) { m.Guest.Script = func(vm pve.GuestVM) { <-vm.Context.Done() } },
			then: func(*pve.Server) {},
			args: []string{"--try-timeout", "5s"}, phases: []string{"placed", "cloned and configured", "powered on", "removed"},
			want: []string{"its bootstrap service has not reported: is it in the template"},
		},
		{
			name: "its clone is refused", change: func(*pve.Model) {},
			then: func(s *pve.Server) { s.SetPrivilege("HyperFleetTemplate", "VM.Clone", false) },
			args: []string{"--try-timeout", "20s"}, phases: nil, // it may be placed before its template is known to lack it
			want: []string{"lacks VM.Clone on /vms/"},
		},
	} {
		t.Run(tc.name, func(t *testing.T) { //nolint:paralleltest // as all here
			f := tried(t, tc.change)
			tc.then(f.PVE)

			out, err := try(t, f, "", append(tc.args, "--yes", "--output", "json")...)
			if cli.ExitCode(err) != 1 {
				t.Errorf("it ended with %v", err)
			}

			var report Report

			must(t, json.Unmarshal([]byte(out), &report))

			got := report.Try
			if got == nil || got.Alive || !got.Removed || report.Problems == 0 {
				t.Fatalf("the trial:\n%s", out)
			}

			if diff := cmp.Diff(tc.phases, names(got.Phases)); tc.phases != nil && diff != "" {
				t.Errorf("phases (-want +got):\n%s", diff)
			}

			for _, want := range tc.want {
				if !strings.Contains(got.Message, want) {
					t.Errorf("want %q in %q", want, got.Message)
				}
			}

			nothingLeft(t, f)
		})
	}
}
