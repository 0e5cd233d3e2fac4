// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// TestPatterns checks the three deployment patterns of the requirements document.
func TestPatterns(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		address               string
		control, infra        v1alpha1.AvailabilityPolicy
		endpoint, exposed     string
		warned                bool
		wantPublished, byPool bool
	}{
		"production": {
			"10.1.0.1", v1alpha1.HighlyAvailable, v1alpha1.HighlyAvailable, "https://api.production.clusters.example.com:6443",
			v1alpha1.ReasonLoadBalancerReady, false, true, true,
		},
		"development": {
			"", v1alpha1.SingleReplica, v1alpha1.SingleReplica, "https://10.20.0.1:",
			v1alpha1.ReasonNodePortReady, false, false, false,
		},
		"staging": {
			"10.1.0.3", v1alpha1.HighlyAvailable, v1alpha1.SingleReplica, "https://api.staging.clusters.example.com:6443",
			v1alpha1.ReasonLoadBalancerReady, true, true, true,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newFixture(t)
			w.createDPUCluster(name, hypershift.PhaseReady)

			b := w.newBridge(name)
			if tc.address != "" {
				b = w.newExposedBridge(name, tc.address)
			}

			b.Spec.ControlPlaneAvailabilityPolicy, b.Spec.InfrastructureAvailabilityPolicy = tc.control, tc.infra
			w.create(b)

			got := w.waitForPhase(b, v1alpha1.PhaseReady)
			w.waitForCondition(b, v1alpha1.ConditionReady, "True ClusterReady", "can be used")
			w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "True "+tc.exposed, "")

			if !strings.HasPrefix(got.Status.APIEndpoint, tc.endpoint) {
				t.Errorf("API at %s, want %s", got.Status.APIEndpoint, tc.endpoint)
			}

			want := v1alpha1.DPFHCPBridgeStatus{
				HostedClusterRef:    &v1alpha1.ObjectReference{Namespace: w.namespace, Name: name},
				NodePoolRef:         &v1alpha1.ObjectReference{Namespace: w.namespace, Name: name},
				IngressEndpoint:     "*.apps." + name + ".clusters.example.com",
				KubeconfigSecretRef: &v1alpha1.LocalObjectReference{Name: name + "-admin-kubeconfig"},
			}
			have := v1alpha1.DPFHCPBridgeStatus{
				HostedClusterRef: got.Status.HostedClusterRef, NodePoolRef: got.Status.NodePoolRef,
				IngressEndpoint: got.Status.IngressEndpoint, KubeconfigSecretRef: got.Status.KubeconfigSecretRef,
			}

			if diff := cmp.Diff(want, have); diff != "" {
				t.Errorf("status (-want +got):\n%s", diff)
			}

			w.checkDocumentConditions(got)
			w.checkPublishedKubeconfig(name)
			w.checkEvent(b, v1alpha1.EventMismatchedAvailability, tc.warned)
		})
	}
}

// checkDocumentConditions checks that a bridge that is ready has the conditions of the samples, each with a message and with
// the generation of the spec that it describes.
func (w *fixture) checkDocumentConditions(b *v1alpha1.DPFHCPBridge) {
	w.t.Helper()

	for _, name := range []string{
		v1alpha1.ConditionReady, v1alpha1.ConditionHostedClusterCreated, v1alpha1.ConditionNodePoolReady,
		v1alpha1.ConditionDPUClusterValid, v1alpha1.ConditionServiceExposureReady,
	} {
		c := meta.FindStatusCondition(b.Status.Conditions, name)
		if c == nil || c.Status != metav1.ConditionTrue || c.Message == "" || c.ObservedGeneration != b.Generation {
			w.t.Errorf("condition %s of generation %d: %+v", name, b.Generation, c)
		}
	}
}

// checkPublishedKubeconfig checks that a DPUCluster names a Secret with the kubeconfig of its hosted
// cluster.
func (w *fixture) checkPublishedKubeconfig(name string) {
	w.t.Helper()

	dpus := w.readObject(hypershift.NewObject(hypershift.DPUClusterKind()), w.dpuNamespace, name)
	secret, own := &corev1.Secret{}, &corev1.Secret{}

	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.dpuNamespace, Name: hypershift.DecodeDPUCluster(dpus).Kubeconfig}, secret))
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name + "-admin-kubeconfig"}, own))

	if kubeconfig := secret.Data["super-admin.conf"]; len(kubeconfig) == 0 || !bytes.Equal(kubeconfig, own.Data["kubeconfig"]) {
		w.t.Errorf("Secret %s does not hold the kubeconfig", secret.Name)
	}
}

// TestKubeconfigIsReplaced checks that DPF gets the new kubeconfig when HyperShift replaces it, as it does for a new CA
// of the hosted cluster and before its client certificate expires.
func TestKubeconfigIsReplaced(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	b := w.createReadyBridge("renewed")

	own := &corev1.Secret{}
	w.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "renewed-admin-kubeconfig"}, own))

	renewed := append(bytes.TrimSpace(own.Data["kubeconfig"]), "\n# renewed\n"...)
	w.setSecretData(own.Name, "kubeconfig", string(renewed))
	w.eventually("DPF has the new kubeconfig", func() bool {
		published := &corev1.Secret{}
		w.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.dpuNamespace, Name: "renewed-hcp-kubeconfig"}, published))

		return bytes.Equal(published.Data["super-admin.conf"], renewed)
	})
	w.waitForPhase(b, v1alpha1.PhaseReady)
}

func (w *fixture) readObject(object *unstructured.Unstructured, namespace, name string) *unstructured.Unstructured {
	w.t.Helper()
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object))

	return object
}

// TestUpgrade checks that an upgrade leads from Ready over Provisioning to Ready, and that an
// unsupported release leaves the cluster unchanged.
func TestUpgrade(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createDPUCluster("upgraded", hypershift.PhaseReady)

	b := w.newExposedBridge("upgraded", "10.2.0.1")
	w.create(b)
	w.waitForPhase(b, v1alpha1.PhaseReady)

	phases := w.watchPhases(b)

	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.OCPReleaseImage = image("4.99.0-x86_64") })
	w.waitForCondition(b, v1alpha1.ConditionReleaseImageValid, "False VersionNotSupported", "HyperShift does not support OpenShift 4.99: choose an image of version 4.16")
	w.waitForPhase(b, v1alpha1.PhaseFailed)

	cluster := w.readObject(hypershift.NewObject(hypershift.HostedClusterKind()), w.namespace, "upgraded")
	if got := hypershift.Image(cluster); got != image("4.15.0-x86_64") {
		t.Errorf("the cluster is to run %s", got)
	}

	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.OCPReleaseImage = image("4.16.0-x86_64") })
	w.eventually("the NodePool follows", func() bool {
		pool := w.readObject(hypershift.NewObject(hypershift.NodePoolKind()), w.namespace, "upgraded")

		return hypershift.Image(pool) == image("4.16.0-x86_64")
	})
	w.waitForPhase(b, v1alpha1.PhaseReady)

	want := []v1alpha1.DPFHCPBridgePhase{
		v1alpha1.PhaseReady, v1alpha1.PhaseFailed, v1alpha1.PhaseProvisioning, v1alpha1.PhaseReady,
	}
	if diff := cmp.Diff(want, phases()); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// watchPhases starts to watch the phases of a bridge. The returned function stops the watch and returns
// the phases.
func (w *fixture) watchPhases(b *v1alpha1.DPFHCPBridge) func() []v1alpha1.DPFHCPBridgePhase {
	w.t.Helper()

	watching, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	w.must(err)

	stream, err := watching.Watch(w.t.Context(), &v1alpha1.DPFHCPBridgeList{},
		client.InNamespace(b.Namespace), client.MatchingFields{"metadata.name": b.Name})
	w.must(err)

	const watched = "example.com/watched"

	done := make(chan []v1alpha1.DPFHCPBridgePhase, 1)

	go func() {
		var seen []v1alpha1.DPFHCPBridgePhase

		defer stream.Stop()

		for event := range stream.ResultChan() {
			now, ok := event.Object.(*v1alpha1.DPFHCPBridge)
			if ok && now.Labels[watched] != "" {
				break
			}

			if ok && (len(seen) == 0 || seen[len(seen)-1] != now.Status.Phase) {
				seen = append(seen, now.Status.Phase)
			}
		}

		done <- seen
	}()

	return func() []v1alpha1.DPFHCPBridgePhase {
		// Watch events arrive with a delay. When the event of this patch arrives, all earlier events have arrived.
		w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Labels = map[string]string{watched: "no-more"} })

		return <-done
	}
}

// TestHostedClusterIsDeletedExternally checks that the bridge reports a HostedCluster that another client
// has deleted and does not create it again, and that a new bridge creates another one.
func TestHostedClusterIsDeletedExternally(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	b := w.createReadyBridge("robbed")

	cluster := w.readObject(hypershift.NewObject(hypershift.HostedClusterKind()), w.namespace, "robbed")
	w.must(env.Client.Delete(t.Context(), cluster))

	w.waitForCondition(b, v1alpha1.ConditionHostedClusterCreated, "False Deleted", "was deleted, but not by this bridge")
	w.waitForCondition(b, v1alpha1.ConditionReady, "False APIServerUnreachable", "was deleted")
	w.waitForPhase(b, v1alpha1.PhaseFailed)

	// A later change of the bridge does not create it again either.
	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.ClusterType = "other" })
	w.waitForPhase(b, v1alpha1.PhaseFailed)

	list := newList(hypershift.HostedClusterKind())
	w.must(env.Client.List(t.Context(), list, client.InNamespace(w.namespace)))

	if len(list.Items) > 0 {
		t.Errorf("there are %d HostedClusters", len(list.Items))
	}

	// The message says to delete the bridge and to create a new one.
	w.must(env.Client.Delete(t.Context(), b))
	w.eventually("the bridge is gone", func() bool {
		return apierrors.IsNotFound(env.Client.Get(t.Context(), client.ObjectKeyFromObject(b), &v1alpha1.DPFHCPBridge{}))
	})

	b = w.newBridge("robbed")
	w.create(b)
	w.waitForPhase(b, v1alpha1.PhaseReady)
}

// TestLostEncryptionKey checks that the bridge reads a lost encryption key back from HyperShift's copy. Without a copy, it
// says so, and a person can do what it says.
func TestLostEncryptionKey(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	b := w.createReadyBridge("keyless")

	name := hypershift.EncryptionKeySecretName("keyless")
	key := &corev1.Secret{}
	w.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, key))

	w.releaseSecret(name)
	w.delete(&corev1.Secret{}, w.namespace, name)
	w.eventually("the key is back", func() bool {
		back := &corev1.Secret{}
		err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(key), back)

		return err == nil && back.UID != key.UID && cmp.Equal(back.Data, key.Data)
	})
	w.waitForPhase(b, v1alpha1.PhaseReady)

	w.eventually("the bridge has noticed that neither the key nor its copy exists", func() bool {
		for _, namespace := range []string{hypershift.ControlPlaneNamespace(w.namespace, "keyless"), w.namespace} {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
			patch := mergePatch(map[string]any{"metadata": map[string]any{"finalizers": nil}})
			w.must(client.IgnoreNotFound(env.Client.Patch(t.Context(), secret, patch)))
			w.must(client.IgnoreNotFound(env.Client.Delete(t.Context(), secret)))
		}

		ready := meta.FindStatusCondition(w.getBridge(b).Status.Conditions, v1alpha1.ConditionReady)

		return strings.Contains(ready.Message, "or delete the bridge and create a new one")
	})
	shared.sim.Forgive(w.namespace + "/keyless") // the cluster may have been checked while it had no key

	w.must(env.Client.Delete(t.Context(), b))
	w.eventually("the bridge is gone", func() bool {
		return apierrors.IsNotFound(env.Client.Get(t.Context(), client.ObjectKeyFromObject(b), &v1alpha1.DPFHCPBridge{}))
	})

	b = w.newBridge("keyless")
	w.create(b)
	w.waitForPhase(b, v1alpha1.PhaseReady)
}

// TestChangesAreReverted checks that the operator reverts changes by others to the objects of a bridge.
func TestChangesAreReverted(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createDPUCluster("fixed", hypershift.PhaseReady)

	b := w.newExposedBridge("fixed", "10.2.0.2")
	w.create(b)
	w.waitForPhase(b, v1alpha1.PhaseReady)

	pool := w.readObject(hypershift.NewObject(hypershift.IPAddressPoolKind()), metalLB, hypershift.PoolName(w.namespace, "fixed"))
	w.must(env.Client.Patch(t.Context(), pool, mergePatch(map[string]any{"spec": map[string]any{"autoAssign": false}})))
	w.eventually("the pool is as it was", func() bool {
		pool := w.readObject(hypershift.NewObject(hypershift.IPAddressPoolKind()), metalLB, hypershift.PoolName(w.namespace, "fixed"))
		auto, _, _ := unstructured.NestedBool(pool.Object, "spec", "autoAssign")

		return auto
	})

	nodes := w.readObject(hypershift.NewObject(hypershift.NodePoolKind()), w.namespace, "fixed")
	uid := nodes.GetUID()
	w.must(env.Client.Delete(t.Context(), nodes))
	w.eventually("the NodePool is recreated", func() bool {
		nodes := hypershift.NewObject(hypershift.NodePoolKind())
		err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "fixed"}, nodes)

		return err == nil && nodes.GetUID() != uid
	})

	nodes = w.readObject(hypershift.NewObject(hypershift.NodePoolKind()), w.namespace, "fixed")
	w.must(env.Client.Patch(t.Context(), nodes, mergePatch(map[string]any{"spec": map[string]any{"replicas": 3}})))
	w.eventually("the NodePool is as it was", func() bool {
		nodes := w.readObject(hypershift.NewObject(hypershift.NodePoolKind()), w.namespace, "fixed")
		replicas, _, _ := unstructured.NestedInt64(nodes.Object, "spec", "replicas")

		return replicas == 0
	})

	key := &corev1.Secret{}
	w.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: hypershift.SSHKeySecretName("fixed")}, key))
	key.Data = map[string][]byte{"id_rsa.pub": []byte("other")}
	w.must(env.Client.Update(t.Context(), key))
	w.eventually("the SSH key is as it was", func() bool {
		w.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(key), key))

		return string(key.Data["id_rsa.pub"]) == sshKey
	})
}

// TestAddressIsChanged checks that the Service gets the new address after a change, and that the old
// address is free.
func TestAddressIsChanged(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createDPUCluster("moved", hypershift.PhaseReady)
	w.createDPUCluster("heir", hypershift.PhaseReady)

	b := w.newExposedBridge("moved", "10.2.0.3")
	w.create(b)
	w.waitForPhase(b, v1alpha1.PhaseReady)

	heir := w.newExposedBridge("heir", "10.2.0.3")
	w.create(heir)
	w.waitForCondition(heir, v1alpha1.ConditionServiceExposureReady, "False VIPConflict", "bridge "+w.namespace+"/moved has the address 10.2.0.3")

	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "10.2.0.4" })
	w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "10.2.0.4:6443")
	w.waitForPhase(b, v1alpha1.PhaseReady)
	w.waitForPhase(heir, v1alpha1.PhaseReady)

	// The older bridge does not get the address back, because the younger bridge has it now.
	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "10.2.0.3" })
	w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "False VIPConflict", "has the address 10.2.0.3")
	w.waitForPhase(b, v1alpha1.PhaseFailed)
	w.patchBridge(heir, func(b *v1alpha1.DPFHCPBridge) { b.Spec.ClusterType = "looked-at" })
	w.waitForPhase(heir, v1alpha1.PhaseReady)

	// The Service already requests an address, and gets the new one.
	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "10.2.0.44" })
	w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "10.2.0.44:6443")
	w.waitForPhase(b, v1alpha1.PhaseReady)
}

// TestAddressOfExistingPool checks that the operator requests an address of an existing pool and
// creates no pool.
func TestAddressOfExistingPool(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	w.createDPUCluster("guest", hypershift.PhaseReady)

	pool := hypershift.NewObject(hypershift.IPAddressPoolKind())
	pool.SetNamespace(metalLB)
	pool.SetName(w.namespace)
	pool.Object["spec"] = map[string]any{"addresses": []any{"192.0.2.10-192.0.2.20"}}
	w.create(pool)
	t.Cleanup(func() { _ = env.Client.Delete(context.Background(), pool) })

	b := w.newExposedBridge("guest", "192.0.2.15")
	w.create(b)
	w.waitForPhase(b, v1alpha1.PhaseReady)
	w.waitForCondition(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "192.0.2.15:6443")

	for _, made := range w.remainingObjects() {
		if strings.HasPrefix(made, "IPAddressPool") {
			t.Errorf("made: %s", made)
		}
	}

	// MetalLB assigns the lowest free address, so the next bridge gets its address without a request. The operator
	// requests the address anyway, because MetalLB may assign another one after a restart.
	w.createDPUCluster("lucky", hypershift.PhaseReady)
	lucky := w.newExposedBridge("lucky", "192.0.2.10")
	w.create(lucky)
	w.waitForPhase(lucky, v1alpha1.PhaseReady)
	w.eventually("the address is requested", func() bool {
		var service corev1.Service

		key := client.ObjectKey{Namespace: hypershift.ControlPlaneNamespace(w.namespace, "lucky"), Name: hypershift.APIServerService}
		w.must(env.Client.Get(t.Context(), key, &service))

		return service.Annotations[hypershift.AnnotationAddress] == "192.0.2.10"
	})
}

// TestRunningImageIsNotChecked checks that a cluster that already runs the image is not affected
// when the registry rejects the pull secret.
func TestRunningImageIsNotChecked(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	b := w.createReadyBridge("running")

	w.setSecretData("pull-secret", v1alpha1.PullSecretKey, pullSecret("user", "another"))
	w.patchBridge(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.ProvisioningTimeout.Duration = 2 * time.Hour }) // triggers a reconcile
	w.waitForCondition(b, v1alpha1.ConditionReleaseImageValid, "True Valid", "the HostedCluster already has the image")
	w.waitForPhase(b, v1alpha1.PhaseReady)
}
