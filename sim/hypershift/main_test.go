// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypershift_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/sim/hypershift/crds"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// env is the API server of all tests.
var env *kube.Env

func TestMain(m *testing.M) {
	kube.Main(m, &env, kube.WithControllerManager(), kube.WithSetup(crds.Install))
}

func newGVK(group, version, kind string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
}

func hostedKind() schema.GroupVersionKind {
	return newGVK("hypershift.openshift.io", "v1beta1", "HostedCluster")
}

func nodePoolKind() schema.GroupVersionKind {
	return newGVK("hypershift.openshift.io", "v1beta1", "NodePool")
}

func newObject(kind schema.GroupVersionKind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	o := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	o.SetGroupVersionKind(kind)
	o.SetNamespace(namespace)
	o.SetName(name)

	return o
}

const releaseImage = "quay.io/openshift-release-dev/ocp-release:4.15.0-x86_64"

// newServicePublishing returns spec.services of a HostedCluster.
func newServicePublishing(balancer bool) []any {
	out := []any{}

	for _, service := range []string{"APIServer", "OAuthServer", "Konnectivity", "Ignition"} {
		how := map[string]any{"type": "NodePort", "nodePort": map[string]any{"address": "10.0.0.5"}}

		switch {
		case balancer && service == "APIServer":
			how = map[string]any{"type": "LoadBalancer"}
		case balancer:
			how = map[string]any{"type": "Route"}
		}

		out = append(out, map[string]any{"service": service, "servicePublishingStrategy": how})
	}

	return out
}

// newHostedCluster returns a HostedCluster that HyperShift accepts.
func newHostedCluster(namespace, name string, balancer bool) *unstructured.Unstructured {
	return newObject(hostedKind(), namespace, name, map[string]any{
		"platform":   map[string]any{"type": "None"},
		"release":    map[string]any{"image": releaseImage},
		"pullSecret": map[string]any{"name": "pull"},
		"sshKey":     map[string]any{"name": "ssh"},
		"dns":        map[string]any{"baseDomain": "clusters.example.com"},
		"networking": map[string]any{
			"networkType":    "Other",
			"clusterNetwork": []any{map[string]any{"cidr": "10.132.0.0/14"}},
			"serviceNetwork": []any{map[string]any{"cidr": "172.31.0.0/16"}},
		},
		"etcd": map[string]any{
			"managementType": "Managed",
			"managed": map[string]any{"storage": map[string]any{
				"type": "PersistentVolume", "persistentVolume": map[string]any{"size": "8Gi"},
			}},
		},
		"services": newServicePublishing(balancer),
	})
}

func newNodePool(namespace, name, cluster string, replicas int64) *unstructured.Unstructured {
	return newObject(nodePoolKind(), namespace, name, map[string]any{
		"clusterName": cluster, "replicas": replicas, "management": map[string]any{"upgradeType": "Replace"},
		"platform": map[string]any{"type": "None"}, "release": map[string]any{"image": releaseImage},
	})
}

// createSecrets creates the Secrets that newHostedCluster refers to.
func createSecrets(t testing.TB, namespace string) {
	t.Helper()

	for name, data := range map[string]map[string]string{
		"pull": {corev1.DockerConfigJsonKey: `{"auths":{"quay.io":{"auth":"YTpi"}}}`},
		"ssh":  {"id_rsa.pub": "ssh-ed25519 AAAA"},
	} {
		createObjects(t, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, StringData: data})
	}
}

func createObjects(t testing.TB, objects ...client.Object) {
	t.Helper()

	for _, o := range objects {
		if err := env.Client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
}

func getObject(t testing.TB, kind schema.GroupVersionKind, namespace, name string) *unstructured.Unstructured {
	t.Helper()

	o := newObject(kind, namespace, name, nil)

	err := env.Client.Get(t.Context(), types.NamespacedName{Namespace: namespace, Name: name}, o)
	if client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}

	if err != nil {
		return nil
	}

	return o
}

// getCondition returns "STATUS REASON" of an object's condition.
func getCondition(t testing.TB, o *unstructured.Unstructured, kind string) string {
	t.Helper()

	if o == nil {
		return ""
	}

	var status struct {
		Status struct {
			Conditions []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &status); err != nil {
		t.Fatal(err)
	}

	found := meta.FindStatusCondition(status.Status.Conditions, kind)
	if found == nil {
		return ""
	}

	return string(found.Status) + " " + found.Reason
}

// waitForCondition waits for a condition of a HostedCluster or NodePool.
func waitForCondition(t testing.TB, kind schema.GroupVersionKind, namespace, name, condType, want string) {
	t.Helper()

	timing.WaitUntil(t, fmt.Sprintf("%s %s is %s", name, condType, want), func() bool {
		return getCondition(t, getObject(t, kind, namespace, name), condType) == want
	})
}
