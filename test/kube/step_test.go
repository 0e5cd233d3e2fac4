// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kube_test

import (
	"context"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const finalizer = "test.hyperfleet.io/cleanup"

// stepWorld is a HypervisorCluster on the real API server, and a runner for it.
func stepWorld(t *testing.T) (*step.Runner, client.Client, *v1alpha1.HypervisorCluster) {
	t.Helper()

	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}

	env.Apply(t, "../../deploy/crds")

	c, err := client.New(env.Config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}

	env.Apply(t, "../../deploy/samples/hypervisorcluster-token.yaml")

	list := &v1alpha1.HypervisorClusterList{}
	if err := c.List(t.Context(), list); err != nil || len(list.Items) != 1 {
		t.Fatalf("list = %d items, %v", len(list.Items), err)
	}

	return &step.Runner{Client: c, Controller: "test"}, c, &list.Items[0]
}

func one(result step.Result) []step.Step[any] {
	return []step.Step[any]{
		{Condition: "Connected", Run: func(context.Context, any) step.Result { return result }},
		{Condition: "Listed", Run: func(context.Context, any) step.Result { return step.Done() }},
	}
}

// The conditions that kit/step writes pass the API server's own schema, at their
// longest and with the oddest reasons, and the life of an object ends with its list.
func TestStepsOnARealServer(t *testing.T) {
	t.Parallel()

	runner, c, cluster := stepWorld(t)
	ctx, key := t.Context(), client.ObjectKeyFromObject(cluster)

	if err := step.EnsureFinalizer(ctx, runner, cluster, finalizer); err != nil {
		t.Fatal(err)
	}

	stale := cluster.DeepCopy()

	long := step.Stall("certificate: not trusted!", strings.Repeat("é", 40000))
	if _, err := step.Run(ctx, runner, cluster, one(long), any(nil)); err != nil {
		t.Fatal(err)
	}

	got := &v1alpha1.HypervisorCluster{}
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

	result, err := step.Run(ctx, runner, stale, one(step.Done()), any(nil))
	if err != nil || result.RequeueAfter <= 0 {
		t.Errorf("a run on a stale copy = %v, %v; want a quiet second try", result, err)
	}

	version := got.ResourceVersion
	if _, err := step.Run(ctx, runner, got, one(long), any(nil)); err != nil || got.ResourceVersion != version {
		t.Errorf("a run that changes nothing has written: %v", err)
	}

	if err := c.Delete(ctx, got); err != nil {
		t.Fatal(err)
	}

	if err := c.Get(ctx, key, got); err != nil {
		t.Fatal(err)
	}

	if _, err := step.Finalize(ctx, runner, got, finalizer, one(step.Done()), any(nil)); err != nil {
		t.Fatal(err)
	}

	if err := c.Get(ctx, key, got); !apierrors.IsNotFound(err) {
		t.Errorf("get = %v, want not found", err)
	}

	if _, err := step.Run(ctx, runner, stale, one(step.Fail(apierrors.NewBadRequest("x"))), any(nil)); err != nil {
		t.Errorf("a run on an object that is gone = %v, want nothing", err)
	}
}
