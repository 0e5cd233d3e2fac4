// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/networking/claimstatus"
	"github.com/hyperfleet/hyperfleet/test/must"
)

func newMachineClaim(namespace, name, template string) *v1alpha1.MachineClaim {
	return &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: template},
			WorkloadConfig: v1alpha1.Workload{Type: "generic", Config: &v1alpha1.WorkloadConfig{
				Generic: &v1alpha1.GenericConfig{Source: "nightly", Command: []string{"/usr/bin/make"}},
			}},
		},
	}
}

func createMachineClaim(t testing.TB) *v1alpha1.MachineClaim {
	t.Helper()

	claim := newMachineClaim(env.Namespace(t), "vm1", "linux")
	must.Do(t, env.Client.Create(t.Context(), claim))

	return claim
}

func getClaim(t *testing.T, claim *v1alpha1.MachineClaim) *v1alpha1.MachineClaim {
	t.Helper()

	now := &v1alpha1.MachineClaim{}
	must.Do(t, env.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), now))

	return now
}

func newWriter(kind, owner string) *claimstatus.Writer {
	return &claimstatus.Writer{Client: env.Client, Clock: clock.RealClock{}, Owner: owner, Types: []string{kind}}
}

// reconcileOnce reconciles the claim once like its own controller, on a copy that may be stale.
func reconcileOnce(ctx context.Context, claim *v1alpha1.MachineClaim, i int) (bool, error) {
	runner := &step.Reconciler{Client: env.Client, Controller: "machineclaim"}
	steps := []step.Step[int]{{Condition: "Placed", Run: func(ctx context.Context, i int) step.Result {
		claim.Status.Attempts = int32(i)
		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(err)
		}

		return step.Done().WithReason("Placed", strconv.Itoa(i))
	}}}

	result, err := step.ReconcileSteps(ctx, runner, claim, steps, i)

	return result.IsZero(), err
}

// The claim's own controller and two controllers of this area write concurrently. At the end, the last
// write of each of them is in the status.
func TestWritersAtOnce(t *testing.T) {
	t.Parallel()

	const rounds = 20

	claim := createMachineClaim(t)

	var writers sync.WaitGroup

	for kind, owner := range map[string]string{
		v1alpha1.ConditionDNSRegistered: "hyperfleet-dns", v1alpha1.ConditionNetworkValidated: "hyperfleet-validate",
	} {
		writers.Go(func() {
			for i := range rounds {
				if err := newWriter(kind, owner).Report(t.Context(), claim.DeepCopy(), metav1.ConditionTrue, "Round", strconv.Itoa(i)); err != nil {
					t.Error(err)
				}
			}
		})
	}

	writers.Go(func() {
		old := getClaim(t, claim)

		for i := 0; i < rounds; {
			done, err := reconcileOnce(t.Context(), old.DeepCopy(), i)
			if err != nil {
				t.Error(err)

				return
			}

			// After a conflict, the controller retries with a new copy and reports no error.
			if done {
				i++
			}

			old = getClaim(t, claim)
		}
	})
	writers.Wait()

	now := getClaim(t, claim)
	for _, kind := range []string{v1alpha1.ConditionDNSRegistered, v1alpha1.ConditionNetworkValidated, "Placed"} {
		if got := meta.FindStatusCondition(now.Status.Conditions, kind); got == nil || got.Message != strconv.Itoa(rounds-1) {
			t.Errorf("%s = %+v", kind, got)
		}
	}

	if now.Status.Attempts != rounds-1 || !meta.IsStatusConditionTrue(now.Status.Conditions, step.Ready) {
		t.Errorf("status of the claim's own controller: %+v", now.Status)
	}
}

func TestReportAndClear(t *testing.T) {
	t.Parallel()

	claim := createMachineClaim(t)
	dns := newWriter(v1alpha1.ConditionDNSRegistered, "hyperfleet-dns")

	must.Do(t, newWriter("Other", "somebody").Report(t.Context(), claim, metav1.ConditionTrue, "There", ""))

	must.Do(t, dns.Report(t.Context(), claim, metav1.ConditionFalse, "Pending", "a"))

	first := getClaim(t, claim)
	must.Do(t, dns.Report(t.Context(), first, metav1.ConditionFalse, "Pending", "b"))

	second := getClaim(t, claim)
	before := meta.FindStatusCondition(first.Status.Conditions, v1alpha1.ConditionDNSRegistered)
	after := meta.FindStatusCondition(second.Status.Conditions, v1alpha1.ConditionDNSRegistered)

	if after == nil || after.Message != "b" || !after.LastTransitionTime.Equal(&before.LastTransitionTime) {
		t.Errorf("from %+v to %+v", before, after)
	}

	// The same condition is not written again.
	must.Do(t, dns.Report(t.Context(), second, metav1.ConditionFalse, "Pending", "b"))

	if third := getClaim(t, claim); third.ResourceVersion != second.ResourceVersion {
		t.Error("the same condition was written again")
	}

	must.Do(t, dns.Clear(t.Context(), second))

	if got := getClaim(t, claim).Status.Conditions; len(got) != 1 || got[0].Type != "Other" {
		t.Errorf("after Clear: %+v", got)
	}
}

// A condition for a deleted claim is ignored and does not recreate the claim.
func TestConditionOfDeletedClaim(t *testing.T) {
	t.Parallel()

	claim := createMachineClaim(t)
	must.Do(t, env.Client.Delete(t.Context(), claim))

	dns := newWriter(v1alpha1.ConditionDNSRegistered, "hyperfleet-dns")
	if err := dns.Report(t.Context(), claim, metav1.ConditionTrue, "There", ""); err != nil {
		t.Errorf("deleted: %v", err)
	}

	err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(claim), claim)
	if !apierrors.IsNotFound(err) {
		t.Errorf("the claim is there: %v", err)
	}
}

// A condition that another program has restored is removed, whether the program owns the whole of it or only a part that
// is invalid alone.
func TestRestoredStatusIsRemoved(t *testing.T) {
	t.Parallel()

	const kind, other = "Restored", "Other"

	for name, create := range map[string]func(*fixture) step.Object{
		"MachineClaim": func(f *fixture) step.Object { return createMachineClaim(f.t) },
		"KubevirtMachine": func(f *fixture) step.Object {
			machine := newMachine(f.namespace, "workers", "vm1")
			must.Do(f.t, env.Client.Create(f.t.Context(), machine))

			return machine
		},
		"HypervisorMachineTemplate": func(f *fixture) step.Object {
			return f.createTemplate("linux", f.createCluster("restored", nil), "", "10.0.0.10-10.0.0.11")
		},
	} {
		for _, ownsAll := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/owns all %t", name, ownsAll), func(t *testing.T) {
				t.Parallel()

				obj, writer := create(&fixture{t: t, namespace: env.Namespace(t)}), newWriter(kind, "somebody")

				for _, restored := range []string{kind, other} {
					meta.SetStatusCondition(obj.StatusConditions(), metav1.Condition{
						Type: restored, Status: metav1.ConditionTrue, Reason: "Restored", Message: "of another time",
					})
				}

				must.Do(t, env.Client.Status().Update(t.Context(), obj))

				if !ownsAll {
					must.Do(t, writer.Report(t.Context(), obj, metav1.ConditionTrue, "Restored", "of now"))
					must.Do(t, env.Client.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))
				}

				must.Do(t, writer.Clear(t.Context(), obj))
				must.Do(t, env.Client.Get(t.Context(), client.ObjectKeyFromObject(obj), obj))

				if got := *obj.StatusConditions(); len(got) != 1 || got[0].Type != other {
					t.Errorf("after Clear: %+v", got)
				}
			})
		}
	}
}
