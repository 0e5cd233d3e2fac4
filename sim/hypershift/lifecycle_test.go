// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/sim/hypershift"
	"github.com/hyperfleet/hyperfleet/sim/hypershift/hypershifttest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

const shortDelay = 50 * time.Millisecond

func startSim(t testing.TB, options hypershift.Options) *hypershift.Sim {
	t.Helper()

	options.Config = env.Config

	return hypershifttest.New(t, options)
}

func createAddressPool(t testing.TB, name, address string, namespaces ...string) {
	t.Helper()

	spec := map[string]any{"addresses": []any{address}}

	if len(namespaces) > 0 {
		all := []any{}
		for _, n := range namespaces {
			all = append(all, n)
		}

		spec["serviceAllocation"] = map[string]any{"namespaces": all, "priority": int64(1)}
	}

	pool := newObject(newGVK("metallb.io", "v1beta1", "IPAddressPool"), "metallb-system", name, spec)
	createObjects(t, pool)
	t.Cleanup(func() {
		if err := env.Client.Delete(context.Background(), pool); err != nil {
			t.Error(err)
		}
	})
}

func getService(t testing.TB, namespace, name string) *corev1.Service {
	t.Helper()

	s := &corev1.Service{}
	if err := env.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, s); err != nil {
		t.Fatal(err)
	}

	return s
}

// A hosted cluster with a load balancer is created, upgraded and deleted.
func TestLifecycle(t *testing.T) {
	namespace := env.Namespace(t)
	startSim(t, hypershift.Options{Delays: hypershift.Delays{
		Address: shortDelay, Kubeconfig: shortDelay, ControlPlane: shortDelay, Rollout: shortDelay, Delete: shortDelay,
	}})
	createSecrets(t, namespace)
	createAddressPool(t, namespace, "192.0.2.7/32", namespace+"-c1")
	createObjects(t, newHostedCluster(namespace, "c1", true), newNodePool(namespace, "c1", "c1", 0))

	waitForCondition(t, hostedKind(), namespace, "c1", "Available", "True AsExpected")
	waitForCondition(t, hostedKind(), namespace, "c1", "Progressing", "False AsExpected")
	waitForCondition(t, hostedKind(), namespace, "c1", "ClusterVersionAvailable", "True FromClusterVersion")
	waitForCondition(t, nodePoolKind(), namespace, "c1", "UpdatingVersion", "False AsExpected")
	waitForCondition(t, nodePoolKind(), namespace, "c1", "Ready", "True AsExpected")
	// That of a pool without nodes, as in nodepool/conditions.go.
	waitForCondition(t, nodePoolKind(), namespace, "c1", "AllNodesHealthy", "False AsExpected")

	cluster := getObject(t, hostedKind(), namespace, "c1")

	endpoint, _, _ := unstructured.NestedMap(cluster.Object, "status", "controlPlaneEndpoint")
	if diff := cmp.Diff(map[string]any{"host": "192.0.2.7", "port": int64(6443)}, endpoint); diff != "" {
		t.Errorf("endpoint (-want +got):\n%s", diff)
	}

	checkKubeconfig(t, cluster)
	upgradeCluster(t, namespace)
	deleteCluster(t, namespace)
}

func checkKubeconfig(t *testing.T, cluster *unstructured.Unstructured) {
	t.Helper()

	name, _, _ := unstructured.NestedString(cluster.Object, "status", "kubeconfig", "name")
	secret := &corev1.Secret{}

	err := env.Client.Get(t.Context(), types.NamespacedName{Namespace: cluster.GetNamespace(), Name: name}, secret)
	if err != nil {
		t.Fatal(err)
	}

	config, err := clientcmd.RESTConfigFromKubeConfig(secret.Data["kubeconfig"])
	if err != nil || config.Host != env.Config.Host {
		t.Errorf("kubeconfig of %s leads elsewhere: %v", name, err)
	}

	if name != "c1-admin-kubeconfig" || !metav1.IsControlledBy(secret, cluster) && secret.OwnerReferences[0].UID != cluster.GetUID() {
		t.Errorf("kubeconfig Secret is %s with owners %v", name, secret.OwnerReferences)
	}
}

func upgradeCluster(t *testing.T, namespace string) {
	t.Helper()

	next := strings.Replace(releaseImage, "4.15.0", "4.16.2", 1)

	for _, kind := range []*unstructured.Unstructured{
		newObject(hostedKind(), namespace, "c1", nil), newObject(nodePoolKind(), namespace, "c1", nil),
	} {
		patch := []byte(`{"spec":{"release":{"image":"` + next + `"}}}`)
		if err := env.Client.Patch(t.Context(), kind, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Fatal(err)
		}
		// A pool can't be ahead of its cluster.
		timing.WaitUntil(t, "the cluster has the desired version", func() bool {
			desired, _, _ := unstructured.NestedString(getObject(t, hostedKind(), namespace, "c1").Object, "status", "version", "desired", "version")

			return desired == "4.16.2"
		})
	}

	var states []string

	timing.WaitUntil(t, "the version is rolled out", func() bool {
		states = nil

		history, _, _ := unstructured.NestedSlice(getObject(t, hostedKind(), namespace, "c1").Object, "status", "version", "history")
		for _, item := range history {
			if entry, ok := item.(map[string]any); ok {
				states = append(states, entry["version"].(string)+" "+entry["state"].(string))
			}
		}

		return len(states) == 2 && states[0] == "4.16.2 Completed"
	})

	if states[1] != "4.15.0 Completed" {
		t.Errorf("history is %v", states)
	}

	timing.WaitUntil(t, "the pool has the version", func() bool {
		version, _, _ := unstructured.NestedString(getObject(t, nodePoolKind(), namespace, "c1").Object, "status", "version")

		return version == "4.16.2"
	})
}

func deleteCluster(t *testing.T, namespace string) {
	t.Helper()

	if err := env.Client.Delete(t.Context(), newObject(hostedKind(), namespace, "c1", nil)); err != nil {
		t.Fatal(err)
	}

	timing.WaitUntil(t, "the cluster is deleted", func() bool { return getObject(t, hostedKind(), namespace, "c1") == nil })
	timing.WaitUntil(t, "its node pool is deleted", func() bool { return getObject(t, nodePoolKind(), namespace, "c1") == nil })

	err := env.Client.Get(t.Context(), types.NamespacedName{Name: namespace + "-c1"}, &corev1.Namespace{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the control plane's namespace outlived the cluster: %v", err)
	}

	timing.WaitUntil(t, "its kubeconfig is deleted", func() bool {
		objectKey := types.NamespacedName{Namespace: namespace, Name: "c1-admin-kubeconfig"}

		return apierrors.IsNotFound(env.Client.Get(t.Context(), objectKey, &corev1.Secret{}))
	})
}

func TestNodePort(t *testing.T) {
	namespace := env.Namespace(t)
	startSim(t, hypershift.Options{})
	createSecrets(t, namespace)
	createObjects(t, newHostedCluster(namespace, "c1", false))

	waitForCondition(t, hostedKind(), namespace, "c1", "Available", "True AsExpected")

	cluster := getObject(t, hostedKind(), namespace, "c1")
	host, _, _ := unstructured.NestedString(cluster.Object, "status", "controlPlaneEndpoint", "host")
	port, _, _ := unstructured.NestedInt64(cluster.Object, "status", "controlPlaneEndpoint", "port")
	ignition, _, _ := unstructured.NestedString(cluster.Object, "status", "ignitionEndpoint")

	if want := getService(t, namespace+"-c1", "kube-apiserver").Spec.Ports[0].NodePort; host != "10.0.0.5" || port != int64(want) {
		t.Errorf("endpoint is %s:%d, the Service has %d", host, port, want)
	}

	if !strings.HasPrefix(ignition, "10.0.0.5:") {
		t.Errorf("ignition endpoint is %q", ignition)
	}
}

// TestFaults has a row for each fault: the condition that shows the fault, and the recovery.
func TestFaults(t *testing.T) {
	tests := map[hypershift.FaultKind]struct {
		kind, want, fixed string
		node              bool
	}{
		hypershift.NoAddress:      {kind: "Available", want: "False WaitingOnInfrastructureReady", fixed: "True AsExpected"},
		hypershift.NoQuorum:       {kind: "Available", want: "False EtcdWaitingForQuorum", fixed: "True AsExpected"},
		hypershift.Unreachable:    {kind: "Available", want: "False KASLoadBalancerNotReachable", fixed: "True AsExpected"},
		hypershift.Degraded:       {kind: "Degraded", want: "True UnavailableReplicas", fixed: "False AsExpected"},
		hypershift.NoWorkers:      {kind: "ClusterVersionAvailable", want: "False FromClusterVersion", fixed: "True FromClusterVersion"},
		hypershift.UnhealthyNodes: {kind: "AllNodesHealthy", want: "False NodeConditionsFailed", fixed: "True AsExpected", node: true},
		hypershift.Slow:           {kind: "Available", want: "False KubeconfigWaitingForCreate", fixed: "False KubeconfigWaitingForCreate"},
	}

	namespace := env.Namespace(t)
	sim := startSim(t, hypershift.Options{})
	createSecrets(t, namespace)
	createAddressPool(t, namespace, "192.0.2.0/28")

	faults := []hypershift.Fault{}
	for kind := range tests {
		faults = append(faults, hypershift.Fault{Kind: kind, Cluster: strings.ToLower(string(kind)), Delay: time.Hour})
	}

	sim.SetFaults(faults...)

	for kind := range tests {
		name := strings.ToLower(string(kind))
		// The simulator allocates addresses with a delay, too.
		createObjects(t, newHostedCluster(namespace, name, kind == hypershift.NoAddress), newNodePool(namespace, name, name, 2))
	}

	look := func(name string, node bool, condType, want string) {
		kind := hostedKind()
		if node {
			kind = nodePoolKind()
		}

		waitForCondition(t, kind, namespace, name, condType, want)
	}

	for kind, test := range tests {
		look(strings.ToLower(string(kind)), test.node, test.kind, test.want)
	}

	sim.SetFaults()

	for kind, test := range tests {
		look(strings.ToLower(string(kind)), test.node, test.kind, test.fixed)
	}
}

func TestStuckDeletion(t *testing.T) {
	namespace := env.Namespace(t)
	sim := startSim(t, hypershift.Options{})
	createSecrets(t, namespace)
	createObjects(t, newHostedCluster(namespace, "c1", false))
	waitForCondition(t, hostedKind(), namespace, "c1", "Available", "True AsExpected")

	sim.SetFaults(hypershift.Fault{Kind: hypershift.StuckDeletion, Cluster: "c1"})

	if err := sim.DeleteHostedCluster(t.Context(), types.NamespacedName{Namespace: namespace, Name: "c1"}); err != nil {
		t.Fatal(err)
	}

	if cluster := getObject(t, hostedKind(), namespace, "c1"); cluster == nil || cluster.GetDeletionTimestamp() == nil {
		t.Fatalf("it is not being deleted: %v", cluster)
	}

	sim.SetFaults()
	timing.WaitUntil(t, "the cluster is deleted", func() bool { return getObject(t, hostedKind(), namespace, "c1") == nil })
}
