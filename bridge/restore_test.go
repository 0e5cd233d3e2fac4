// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bytes"
	"context"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
	simulator "github.com/hyperfleet/hyperfleet/sim/hypershift"
)

// orphan removes the owners of a bridge's objects, as kubectl delete --cascade=orphan does.
func (w *fixture) orphan() {
	w.t.Helper()

	for _, kind := range []schema.GroupVersionKind{
		hypershift.HostedClusterKind(), hypershift.NodePoolKind(), corev1.SchemeGroupVersion.WithKind("Secret"),
	} {
		list := newList(kind)
		w.must(env.Client.List(w.t.Context(), list, client.InNamespace(w.namespace), client.HasLabels{hypershift.LabelUID}))

		for i := range list.Items {
			if ref := metav1.GetControllerOf(&list.Items[i]); ref == nil || ref.Kind != "DPFHCPBridge" {
				continue // an object of HyperShift
			}

			w.must(env.Client.Patch(w.t.Context(), &list.Items[i], mergePatch(map[string]any{"metadata": map[string]any{"ownerReferences": nil}})))
		}
	}
}

// restoreBridge brings a bridge to the state after a restore without its status.
func (w *fixture) restoreBridge(b *v1alpha1.DPFHCPBridge, isInPlace bool) {
	w.t.Helper()

	object := w.getBridge(b)
	object.Status = v1alpha1.DPFHCPBridgeStatus{}

	if isInPlace {
		w.must(env.Client.Status().Update(w.t.Context(), object))

		return
	}

	current := object.DeepCopy()
	w.must(env.Client.Patch(w.t.Context(), current, mergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})))
	w.must(env.Client.Delete(w.t.Context(), current))
	object.SetUID("")
	object.SetResourceVersion("")
	w.create(object)
}

// restoreFixture is a fixture that runs its own area, and stops and starts it.
type restoreFixture struct {
	*fixture

	stop func()
}

func newRestoreFixture(t *testing.T) *restoreFixture {
	t.Helper()

	w := &restoreFixture{fixture: newIsolatedFixture(t)}
	w.timeout = 30 * time.Second
	w.must(installKinds(t.Context(), env.Config))
	w.must(createReadyNode(t.Context()))

	sim, err := simulator.Start(simulator.Options{Config: env.Config, Supported: supportedVersions(), Delays: simulator.Delays{
		Address: delay, Kubeconfig: delay, ControlPlane: delay, Rollout: delay, Delete: delay,
	}})
	w.must(err)
	t.Cleanup(func() { w.must(sim.Close()) })
	w.start()
	t.Cleanup(func() { w.stop() })
	t.Cleanup(w.clear) // while the area runs

	return w
}

// start starts the area as a new process would.
func (w *restoreFixture) start() {
	w.t.Helper()

	ctx, cancel := context.WithCancel(context.Background())
	done := runArea(ctx, clock.RealClock{}, newCounts())

	w.stop = sync.OnceFunc(func() {
		cancel()

		if err := <-done; err != nil {
			w.t.Error(err)
		}
	})
}

// TestBridgesRestoredWithoutStatus checks that a bridge keeps its hosted cluster, its keys and its DPUCluster
// after a restore without statuses, that another bridge does not get them, and that a hosted cluster that was
// lost is not created again.
func TestBridgesRestoredWithoutStatus(t *testing.T) { //nolint:paralleltest // it stops and starts the area
	w := newRestoreFixture(t)
	w.createDPUCluster("main", hypershift.PhaseReady)

	main := w.newExposedBridge("main", "10.9.0.1")
	w.create(main)
	w.waitForPhase(main, v1alpha1.PhaseReady)

	other := w.newExposedBridge("a-late", "10.9.0.2")
	other.Spec.DPUClusterRef.Name = "main"
	w.create(other)
	w.waitForCondition(other, v1alpha1.ConditionDPUClusterValid, "False InUse", "served by bridge")

	cluster := func() *unstructured.Unstructured {
		return w.readObject(hypershift.NewObject(hypershift.HostedClusterKind()), w.namespace, "main")
	}
	encryptionKey := func() []byte {
		var secret corev1.Secret
		w.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: hypershift.EncryptionKeySecretName("main")}, &secret))

		return secret.Data[hypershift.EncryptionKeyKey]
	}
	uid, key := cluster().GetUID(), encryptionKey()

	for _, isInPlace := range []bool{true, false} {
		w.stop()

		if !isInPlace {
			w.orphan()
		}

		w.restoreBridge(other, isInPlace)
		time.Sleep(time.Second) // creation timestamps have whole seconds, and the older bridge would come first
		w.restoreBridge(main, isInPlace)

		w.start()

		w.waitForPhase(main, v1alpha1.PhaseReady)
		w.waitForCondition(other, v1alpha1.ConditionDPUClusterValid, "False InUse", "served by bridge")
		w.checkPublishedKubeconfig("main")

		if after := cluster(); after.GetUID() != uid || !bytes.Equal(encryptionKey(), key) {
			t.Fatalf("restored in place %t: the HostedCluster or its key is another one", isInPlace)
		}

		if owners := cluster().GetOwnerReferences(); len(owners) != 1 || owners[0].UID != w.getBridge(main).UID {
			t.Errorf("the HostedCluster has the owners %v", owners)
		}
	}

	w.stop()
	w.must(env.Client.Delete(t.Context(), cluster()))
	w.eventually("the HostedCluster is lost", func() bool {
		object := hypershift.NewObject(hypershift.HostedClusterKind())

		return env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "main"}, object) != nil
	})
	w.restoreBridge(main, true)

	w.start()

	w.waitForCondition(main, v1alpha1.ConditionHostedClusterCreated, "False Deleted", "its data is lost")
}
