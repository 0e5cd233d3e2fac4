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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// The document's three patterns.
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

			w := newWorld(t)
			w.dpuCluster(name, hypershift.PhaseReady)

			b := w.bridge(name)
			if tc.address != "" {
				b = w.exposed(name, tc.address)
			}

			b.Spec.ControlPlaneAvailabilityPolicy, b.Spec.InfrastructureAvailabilityPolicy = tc.control, tc.infra
			w.create(b)

			got := w.reaches(b, v1alpha1.PhaseReady)
			w.says(b, v1alpha1.ConditionReady, "True ClusterReady", "can be used")
			w.says(b, v1alpha1.ConditionServiceExposureReady, "True "+tc.exposed, "")

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

			w.handedOver(name)
			w.warned(b, v1alpha1.EventMismatchedAvailability, tc.warned)
		})
	}
}

// handedOver checks that a DPUCluster names a Secret with its cluster's own kubeconfig.
func (w *world) handedOver(name string) {
	w.t.Helper()

	dpus := w.read(hypershift.New(hypershift.DPUClusterKind()), w.dpus, name)
	secret, own := &corev1.Secret{}, &corev1.Secret{}

	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.dpus, Name: hypershift.ReadDPUCluster(dpus).Kubeconfig}, secret))
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name + "-admin-kubeconfig"}, own))

	if kubeconfig := secret.Data["super-admin.conf"]; len(kubeconfig) == 0 || !bytes.Equal(kubeconfig, own.Data["kubeconfig"]) {
		w.t.Errorf("Secret %s does not hold the kubeconfig", secret.Name)
	}
}

func (w *world) read(object *unstructured.Unstructured, namespace, name string) *unstructured.Unstructured {
	w.t.Helper()
	w.must(env.Client.Get(w.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object))

	return object
}

// An upgrade leads from Ready over Provisioning to Ready; a release that is not there leaves
// the cluster as it is.
func TestUpgrade(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.dpuCluster("upgraded", hypershift.PhaseReady)

	b := w.exposed("upgraded", "10.2.0.1")
	w.create(b)
	w.reaches(b, v1alpha1.PhaseReady)

	phases := w.phases(b)

	w.patch(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.OCPReleaseImage = image("4.99.0-x86_64") })
	w.says(b, v1alpha1.ConditionReleaseImageValid, "False VersionNotSupported", "HyperShift does not run OpenShift 4.99: choose an image of 4.16")
	w.reaches(b, v1alpha1.PhaseFailed)

	cluster := w.read(hypershift.New(hypershift.HostedClusterKind()), w.namespace, "upgraded")
	if got := hypershift.Image(cluster); got != image("4.15.0-x86_64") {
		t.Errorf("the cluster is to run %s", got)
	}

	w.patch(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.OCPReleaseImage = image("4.16.0-x86_64") })
	w.eventually("the NodePool follows", func() bool {
		pool := w.read(hypershift.New(hypershift.NodePoolKind()), w.namespace, "upgraded")

		return hypershift.Image(pool) == image("4.16.0-x86_64")
	})
	w.reaches(b, v1alpha1.PhaseReady)

	want := []v1alpha1.DPFHCPBridgePhase{
		v1alpha1.PhaseReady, v1alpha1.PhaseFailed, v1alpha1.PhaseProvisioning, v1alpha1.PhaseReady,
	}
	if diff := cmp.Diff(want, phases()); diff != "" {
		t.Errorf("phases (-want +got):\n%s", diff)
	}
}

// phases watches a bridge's phases from now on; what it gives ends the watch and tells them.
func (w *world) phases(b *v1alpha1.DPFHCPBridge) func() []v1alpha1.DPFHCPBridgePhase {
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
			now, is := event.Object.(*v1alpha1.DPFHCPBridge)
			if is && now.Labels[watched] != "" {
				break
			}

			if is && (len(seen) == 0 || seen[len(seen)-1] != now.Status.Phase) {
				seen = append(seen, now.Status.Phase)
			}
		}

		done <- seen
	}()

	return func() []v1alpha1.DPFHCPBridgePhase {
		// What is written is told a moment later: all of it, when this is told.
		w.patch(b, func(b *v1alpha1.DPFHCPBridge) { b.Labels = map[string]string{watched: "no-more"} })

		return <-done
	}
}

// A HostedCluster that somebody else deletes is missed, and not made again.
func TestHostedClusterIsDeletedByAnother(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.dpuCluster("robbed", hypershift.PhaseReady)

	b := w.bridge("robbed")
	w.create(b)
	w.reaches(b, v1alpha1.PhaseReady)

	cluster := w.read(hypershift.New(hypershift.HostedClusterKind()), w.namespace, "robbed")
	w.must(env.Client.Delete(t.Context(), cluster))

	w.says(b, v1alpha1.ConditionHostedClusterCreated, "False Deleted", "was deleted, though not by this bridge")
	w.says(b, v1alpha1.ConditionReady, "False APIServerUnreachable", "was deleted")
	w.reaches(b, v1alpha1.PhaseFailed)

	// Nothing that happens later brings it back.
	w.patch(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.ClusterType = "other" })
	w.reaches(b, v1alpha1.PhaseFailed)

	list := listOf(hypershift.HostedClusterKind())
	w.must(env.Client.List(t.Context(), list, client.InNamespace(w.namespace)))

	if len(list.Items) > 0 {
		t.Errorf("there are %d HostedClusters", len(list.Items))
	}
}

// What a person changes of the things a bridge has made is put back.
func TestChangesAreReverted(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.dpuCluster("fixed", hypershift.PhaseReady)

	b := w.exposed("fixed", "10.2.0.2")
	w.create(b)
	w.reaches(b, v1alpha1.PhaseReady)

	pool := w.read(hypershift.New(hypershift.IPAddressPoolKind()), metalLB, hypershift.PoolName(w.namespace, "fixed"))
	w.must(env.Client.Patch(t.Context(), pool, merge(map[string]any{"spec": map[string]any{"autoAssign": false}})))
	w.eventually("the pool is as it was", func() bool {
		pool := w.read(hypershift.New(hypershift.IPAddressPoolKind()), metalLB, hypershift.PoolName(w.namespace, "fixed"))
		auto, _, _ := unstructured.NestedBool(pool.Object, "spec", "autoAssign")

		return auto
	})

	nodes := w.read(hypershift.New(hypershift.NodePoolKind()), w.namespace, "fixed")
	uid := nodes.GetUID()
	w.must(env.Client.Delete(t.Context(), nodes))
	w.eventually("the NodePool is made again", func() bool {
		nodes := hypershift.New(hypershift.NodePoolKind())
		err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: "fixed"}, nodes)

		return err == nil && nodes.GetUID() != uid
	})

	key := &corev1.Secret{}
	w.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: hypershift.SSHKeyName("fixed")}, key))
	key.Data = map[string][]byte{"id_rsa.pub": []byte("other")}
	w.must(env.Client.Update(t.Context(), key))
	w.eventually("the SSH key is as it was", func() bool {
		w.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(key), key))

		return string(key.Data["id_rsa.pub"]) == sshKey
	})
}

// The address may be changed; the Service gets the new one, and the old one is free.
func TestAddressIsChanged(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.dpuCluster("moved", hypershift.PhaseReady)
	w.dpuCluster("heir", hypershift.PhaseReady)

	b := w.exposed("moved", "10.2.0.3")
	w.create(b)
	w.reaches(b, v1alpha1.PhaseReady)

	heir := w.exposed("heir", "10.2.0.3")
	w.create(heir)
	w.says(heir, v1alpha1.ConditionServiceExposureReady, "False VIPConflict", "bridge "+w.namespace+"/moved has the address 10.2.0.3")

	w.patch(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "10.2.0.4" })
	w.says(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "10.2.0.4:6443")
	w.reaches(b, v1alpha1.PhaseReady)
	w.reaches(heir, v1alpha1.PhaseReady)

	// The older bridge does not take back what the younger one has by now.
	w.patch(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.MetalLBVirtualIP = "10.2.0.3" })
	w.says(b, v1alpha1.ConditionServiceExposureReady, "False VIPConflict", "has the address 10.2.0.3")
	w.reaches(b, v1alpha1.PhaseFailed)
	w.patch(heir, func(b *v1alpha1.DPFHCPBridge) { b.Spec.ClusterType = "looked-at" })
	w.reaches(heir, v1alpha1.PhaseReady)
}

// An address of a pool that is there is asked for, and no pool is made.
func TestAddressOfAPoolThatIsThere(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.dpuCluster("guest", hypershift.PhaseReady)

	pool := hypershift.New(hypershift.IPAddressPoolKind())
	pool.SetNamespace(metalLB)
	pool.SetName(w.namespace)
	pool.Object["spec"] = map[string]any{"addresses": []any{"192.0.2.10-192.0.2.20"}}
	w.create(pool)
	t.Cleanup(func() { _ = env.Client.Delete(context.Background(), pool) })

	b := w.exposed("guest", "192.0.2.15")
	w.create(b)
	w.reaches(b, v1alpha1.PhaseReady)
	w.says(b, v1alpha1.ConditionServiceExposureReady, "True LoadBalancerReady", "192.0.2.15:6443")

	for _, made := range w.made() {
		if strings.HasPrefix(made, "IPAddressPool") {
			t.Errorf("made: %s", made)
		}
	}

	// MetalLB gives the lowest that is free: the next bridge gets its address by chance, and
	// has it written down all the same, for MetalLB may start anew.
	w.dpuCluster("lucky", hypershift.PhaseReady)
	lucky := w.exposed("lucky", "192.0.2.10")
	w.create(lucky)
	w.reaches(lucky, v1alpha1.PhaseReady)
	w.eventually("the address is asked for", func() bool {
		var service corev1.Service

		key := client.ObjectKey{Namespace: hypershift.ControlPlaneNamespace(w.namespace, "lucky"), Name: hypershift.APIServerService}
		w.must(env.Client.Get(t.Context(), key, &service))

		return service.Annotations[hypershift.AnnotationAddress] == "192.0.2.10"
	})
}

// A registry that does not let the pull secret in any more does no harm to a cluster that runs
// the image already.
func TestRegistryIsNotAskedForWhatRuns(t *testing.T) {
	t.Parallel()

	w := newWorld(t)
	w.dpuCluster("running", hypershift.PhaseReady)

	b := w.bridge("running")
	w.create(b)
	w.reaches(b, v1alpha1.PhaseReady)

	w.data("pull-secret", v1alpha1.PullSecretKey, pullSecret("user", "another"))
	w.patch(b, func(b *v1alpha1.DPFHCPBridge) { b.Spec.ProvisioningTimeout.Duration = 2 * time.Hour }) // it is looked at
	w.says(b, v1alpha1.ConditionReleaseImageValid, "True Valid", "the HostedCluster has the image")
	w.reaches(b, v1alpha1.PhaseReady)
}
