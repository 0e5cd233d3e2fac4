// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	hfv1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

// When Apply has returned, every client finds the CRD's kinds, whether or not the client has looked them up
// before.
func TestApplyReturnsWhenKindsAreFound(t *testing.T) {
	t.Parallel()

	another := func() client.Client {
		c, err := client.New(env.Config, client.Options{Scheme: env.Scheme})
		if err != nil {
			t.Fatal(err)
		}

		return c
	}
	before := another()

	for i := range 8 {
		group := fmt.Sprintf("late-%d.hyperfleet.io", i)
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(group + "/v1")
		list.SetKind("LateList")

		if err := before.List(t.Context(), list); !meta.IsNoMatchError(err) {
			t.Fatalf("list %s before its CRD is there: %v", group, err)
		}

		path := filepath.Join(t.TempDir(), "crd.yaml")
		if err := os.WriteFile(path, fmt.Appendf(nil, lateCRD, group), 0o600); err != nil {
			t.Fatal(err)
		}

		env.Apply(t, path)

		for name, c := range map[string]client.Client{"asked before": before, "knows nothing yet": another()} {
			if err := c.List(t.Context(), list); err != nil {
				t.Errorf("list %s by a client that %s: %v", group, name, err)
			}
		}
	}
}

const lateCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lates.%[1]s}
spec:
  group: %[1]s
  names: {kind: Late, listKind: LateList, plural: lates, singular: late}
  scope: Cluster
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`

const finalizer = "test.hyperfleet.io/cleanup"

func newSteps(result step.Result) []step.Step[any] {
	return []step.Step[any]{
		{Condition: "Connected", Run: func(context.Context, any) step.Result { return result }},
		{Condition: "Listed", Run: func(context.Context, any) step.Result { return step.Done() }},
	}
}

// The conditions that kit/step writes are valid in the API server's schema, also with the longest messages and
// unusual reasons. When an object is deleted, all steps' finalizers have run.
func TestStepsOnARealServer(t *testing.T) {
	t.Parallel()

	ctx, c, key := t.Context(), env.Client, client.ObjectKey{Name: "steps"}
	object := parseObject(t, baseCluster)
	object.SetName(key.Name)
	env.Create(t, object)

	cluster := &hfv1.HypervisorCluster{}
	if err := c.Get(ctx, key, cluster); err != nil {
		t.Fatal(err)
	}

	runner := &step.Reconciler{Client: c, Controller: "test"}

	if err := step.EnsureFinalizer(ctx, runner, cluster, finalizer); err != nil {
		t.Fatal(err)
	}

	stale := cluster.DeepCopy()

	long := step.Stall("certificate: not trusted!", strings.Repeat("é", 40000))
	if _, err := step.ReconcileSteps(ctx, runner, cluster, newSteps(long), any(nil)); err != nil {
		t.Fatal(err)
	}

	got := &hfv1.HypervisorCluster{}
	if err := c.Get(ctx, key, got); err != nil {
		t.Fatal(err)
	}

	stalled := meta.FindStatusCondition(got.Status.Conditions, step.Stalled)
	if stalled == nil || stalled.Reason != "CertificateNotTrusted" || stalled.ObservedGeneration != got.Generation {
		t.Errorf("Stalled = %v", stalled)
	}

	if !meta.IsStatusConditionPresentAndEqual(got.Status.Conditions, "Listed", metav1.ConditionUnknown) {
		t.Errorf("conditions = %v", got.Status.Conditions)
	}

	result, err := step.ReconcileSteps(ctx, runner, stale, newSteps(step.Done()), any(nil))
	if err != nil || result.RequeueAfter <= 0 {
		t.Errorf("a reconcile of a stale copy = %v, %v; want a retry without an error", result, err)
	}

	version := got.ResourceVersion
	if _, err := step.ReconcileSteps(ctx, runner, got, newSteps(long), any(nil)); err != nil || got.ResourceVersion != version {
		t.Errorf("a reconcile without a change has written: %v", err)
	}

	if err := c.Delete(ctx, got); err != nil {
		t.Fatal(err)
	}

	if err := c.Get(ctx, key, got); err != nil {
		t.Fatal(err)
	}

	if _, err := step.Finalize(ctx, runner, got, finalizer, newSteps(step.Done()), any(nil)); err != nil {
		t.Fatal(err)
	}

	if err := c.Get(ctx, key, got); !apierrors.IsNotFound(err) {
		t.Errorf("get = %v, want not found", err)
	}

	if _, err := step.ReconcileSteps(ctx, runner, stale, newSteps(step.Fail(apierrors.NewBadRequest("x"))), any(nil)); err != nil {
		t.Errorf("a reconcile of a deleted object = %v, want no error", err)
	}
}
