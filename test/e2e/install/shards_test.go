// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/shards"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// shardValues are the values of two operators that divide two namespaces. No operator serves the namespace ci.
const shardValues = `
areas: {runners: {config: {runners: {listInterval: 1s}}}}
shards:
  - {name: a, namespaces: [team-a], host: a.example.com, config: {guest: {url: "https://a.example.com"}}}
  - {name: b, namespaces: [team-b], host: b.example.com}
secretNamespaces: [team-a, team-b, ci]
machineNamespaces: [ci]
ingress: {enabled: true, tlsSecret: hyperfleet-tls}
`

// TestShards checks that the chart creates an operator for each shard, which works in its namespaces and reads no Secrets
// of the others.
func TestShards(t *testing.T) {
	t.Parallel()

	env := kube.Start(t)
	u := newUser(t, env, "")
	u.writeFile("values.yaml", shardValues)

	for _, namespace := range []string{"team-a", "team-b", "ci"} {
		meta := metav1.ObjectMeta{Name: namespace}
		u.must(env.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: meta}))

		meta.Namespace, meta.Name = namespace, "credentials"
		u.must(env.Client.Create(t.Context(), &corev1.Secret{ObjectMeta: meta}))
	}

	const options = " --namespace " + otherNamespace + " --create-namespace --values values.yaml"

	u.runCommands("helm install hyperfleet-crds hyperfleet-crds-0.1.0.tgz\nhelm install hyperfleet hyperfleet-0.1.0.tgz" + options + "\n")

	for _, name := range []string{"a", "b"} {
		pod := runDeployment(t, env, otherNamespace, "hyperfleet-runners-"+name)
		waitUntilReady(t, pod)
		checkShardLease(t, env, name, "team-"+name)
		checkShardAccess(t, env, name)

		if output := pod.Log(t); strings.Contains(output, "orbidden") {
			t.Errorf("the account of shard %s lacks a permission:\n%s", name, output)
		}
	}

	checkMachineAccounts(t, env)

	wide := &rbacv1.ClusterRoleBinding{}
	if err := env.Client.Get(t.Context(), client.ObjectKey{Name: "hyperfleet-runners"}, wide); !apierrors.IsNotFound(err) {
		t.Errorf("the ClusterRoleBinding of an operator for all namespaces: %v", err)
	}

	ingress := &networkingv1.Ingress{}
	u.must(env.Client.Get(t.Context(), client.ObjectKey{Namespace: otherNamespace, Name: "hyperfleet-webhooks"}, ingress))

	for i, name := range []string{"a", "b"} {
		rule := ingress.Spec.Rules[i]
		if backend := rule.HTTP.Paths[0].Backend.Service.Name; rule.Host != name+".example.com" || backend != "hyperfleet-webhooks-"+name {
			t.Errorf("the ingress directs %s to %s", rule.Host, backend)
		}
	}

	before := u.listVersions(env)
	u.runCommands("helm upgrade hyperfleet hyperfleet-0.1.0.tgz" + options + "\n")

	for name, version := range u.listVersions(env) {
		if before[name] != version {
			t.Errorf("an upgrade to the same release has changed %s", name)
		}
	}

	for value, want := range map[string]string{
		"shards[1].namespaces={team-b,team-a}": "a and b both have the namespace team-a",
		"shards[1].name=a":                     "two have the name a",
		"shards[1].host=":                      "shard b needs a host",
	} {
		output := u.runCommands("helm template hyperfleet hyperfleet-0.1.0.tgz --values values.yaml --set '" + value + "' 2>&1 && exit 1 || true\n")
		if !strings.Contains(output, want) {
			t.Errorf("%s: %s, want %s", value, output, want)
		}
	}
}

// checkShardLease waits until the Lease of a shard has exactly one namespace.
func checkShardLease(t *testing.T, env *kube.Env, name, namespace string) {
	t.Helper()

	key := client.ObjectKey{Namespace: otherNamespace, Name: shards.LeaseName([]string{"runners"}, name)}

	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(50 * time.Millisecond) {
		lease := &coordinationv1.Lease{}
		err := env.Client.Get(t.Context(), key, lease)

		if namespaces, _ := shards.ParseLabels(lease.Labels); err == nil && slices.Equal(namespaces, []string{namespace}) {
			return
		}

		if time.Now().After(deadline) {
			t.Fatalf("Lease %s has the labels %v (%v)", key.Name, lease.Labels, err)
		}
	}
}

// checkShardAccess checks whose Secrets the account of a shard may read: those of its namespace, and those of a namespace
// that no shard serves.
func checkShardAccess(t *testing.T, env *kube.Env, name string) {
	t.Helper()

	limited, err := client.New(env.ServiceAccount(t, otherNamespace, "hyperfleet-runners-"+name), client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	for _, namespace := range []string{"team-a", "team-b", "ci"} {
		err := limited.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "credentials"}, &corev1.Secret{})
		if mayRead := namespace == "team-"+name || namespace == "ci"; mayRead != (err == nil) || !mayRead && !apierrors.IsForbidden(err) {
			t.Errorf("shard %s reads a Secret of namespace %s: %v", name, namespace, err)
		}
	}
}

// checkMachineAccounts checks that all shards may create KubeVirt machines, because HypervisorClusters have no namespace.
func checkMachineAccounts(t *testing.T, env *kube.Env) {
	t.Helper()

	namespaced, cluster := &rbacv1.RoleBinding{}, &rbacv1.ClusterRoleBinding{}

	for _, err := range []error{
		env.Client.Get(t.Context(), client.ObjectKey{Namespace: "ci", Name: "hyperfleet-machines"}, namespaced),
		env.Client.Get(t.Context(), client.ObjectKey{Name: "hyperfleet-machines-capacity"}, cluster),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}

	want := []rbacv1.Subject{
		{Kind: "ServiceAccount", Name: "hyperfleet-runners-a", Namespace: otherNamespace},
		{Kind: "ServiceAccount", Name: "hyperfleet-runners-b", Namespace: otherNamespace},
	}
	if !slices.Equal(namespaced.Subjects, want) || !slices.Equal(cluster.Subjects, want) {
		t.Errorf("accounts that may create machines: %v, and read the capacity: %v, want %v", namespaced.Subjects, cluster.Subjects, want)
	}
}
