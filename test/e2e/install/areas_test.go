// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/kubelet"
)

// waitTimeout is the limit of a wait.
const waitTimeout = 3 * time.Minute

// TestAreas checks that every area starts with what the chart gives it and has all permissions, that an upgrade to
// the same release changes nothing, and that the CRDs are kept when the charts are uninstalled.
func TestAreas(t *testing.T) {
	t.Parallel()

	env := kube.Start(t)
	u := newUser(t, env, "")
	u.must(env.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ci"}}))
	u.writeFile("values.yaml", `
areas:
  runners: {config: {runners: {listInterval: 1s}}}
  networking: {enabled: true, replicas: 1}
  hosts: {enabled: true, env: [{name: GOMEMLIMIT, value: 400MiB}]}
  bridge: {enabled: true, egress: [{ports: [{protocol: TCP, port: 5001}]}]}
secretNamespaces: [ci]
machineNamespaces: [ci]
monitoring: {enabled: true}
ingress: {enabled: true, className: nginx, host: hyperfleet.example.com, tlsSecret: hyperfleet-tls}
`)

	u.runCommands(kubelet.MonitorCRDs + "kubectl create namespace monitoring\nkubectl create serviceaccount prometheus-k8s --namespace monitoring\n")

	const options = " --namespace " + otherNamespace + " --create-namespace --values values.yaml\n"

	u.runCommands("helm install hyperfleet-crds hyperfleet-crds-0.1.0.tgz\nhelm install hyperfleet hyperfleet-0.1.0.tgz" + options)

	pods := map[string]*kubelet.Pod{}
	for _, area := range []string{"runners", "networking", "hosts", "bridge"} {
		pods[area] = runDeployment(t, env, otherNamespace, "hyperfleet-"+area)
	}

	for _, pod := range pods {
		waitUntilReady(t, pod)
	}

	checkTokenSecrets(t, env)

	for area, pod := range pods {
		u.reportMemory(area, pod.Process.PID())
	}

	kubelet.CheckScrapes(t, env, kubelet.Monitor{
		Kind: "ServiceMonitor", Namespace: otherNamespace, Name: "hyperfleet", Token: env.ServiceAccount(t, "monitoring", "prometheus-k8s").BearerToken,
	}, "hyperfleet_build_info", len(pods), slices.Collect(maps.Values(pods))...)

	// People apply the output of helm template, and do not want to drain then.
	const template = "helm template hyperfleet hyperfleet-0.1.0.tgz --namespace " + otherNamespace + " --values values.yaml"

	if printed := u.runCommands(template + "\n"); !strings.Contains(printed, "kind: Deployment") || strings.Contains(printed, "helm.sh/hook") {
		t.Errorf("helm template prints a hook:\n%s", printed)
	}

	if hooks := u.runCommands("helm get hooks hyperfleet --namespace " + otherNamespace + "\n"); !strings.Contains(hooks, "kind: Job") {
		t.Errorf("the release has no Job that drains:\n%s", hooks)
	}

	output := u.runCommands(template + " --set areas.runners.enabled=false,ingress.enabled=false\n")
	if !strings.Contains(output, "name: hyperfleet-no-token-secrets") {
		t.Error("the chart without the area runners has no policy for token Secrets")
	}

	output = u.runCommands(template + " --set areas.runners.enabled=false 2>&1 || true\n")
	if want := "ingress.enabled: the ingress needs the area runners"; !strings.Contains(output, want) {
		t.Errorf("an ingress without the area runners: %s, want %s", output, want)
	}

	before := u.listVersions(env)
	u.runCommands("helm upgrade hyperfleet hyperfleet-0.1.0.tgz" + options)

	for name, version := range u.listVersions(env) {
		if before[name] != version {
			t.Errorf("an upgrade to the same release has changed %s", name)
		}
	}

	for area, pod := range pods {
		if output := pod.Log(t); strings.Contains(output, "orbidden") {
			t.Errorf("the account of %s lacks a permission:\n%s", area, output)
		}
	}

	pool := &v1alpha1.RunnerPool{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux"},
		Spec: v1alpha1.RunnerPoolSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: "linux"},
			Workload: v1alpha1.Workload{
				Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{}},
			},
		},
	}
	u.must(env.Client.Create(t.Context(), pool))

	u.meanwhile = func() { runJobs(t, env, releaseProgram(t, "hyperfleet"), otherNamespace) }
	u.runCommands("helm uninstall hyperfleet --namespace " + otherNamespace + "\nhelm uninstall hyperfleet-crds\n")

	if left := u.listVersions(env); len(left) > 0 {
		t.Errorf("objects are left: %v", left)
	}

	u.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(pool), pool))

	if !pool.Spec.Paused {
		t.Error("the pool was not paused before the operator was deleted")
	}

	var kinds apiextensionsv1.CustomResourceDefinitionList
	if err := env.Client.List(t.Context(), &kinds); err != nil || len(kinds.Items) == 0 {
		t.Errorf("the CRDs were deleted with the charts (%v)", err)
	}
}

// checkTokenSecrets checks that the policy for token Secrets holds for the accounts in the namespace of the release.
func checkTokenSecrets(t *testing.T, env *kube.Env) {
	t.Helper()

	limited, err := client.New(env.ServiceAccount(t, otherNamespace, "hyperfleet-networking"), client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "token"}, Type: corev1.SecretTypeBootstrapToken}
	if err := limited.Create(t.Context(), secret, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "hyperfleet-no-token-secrets") {
		t.Errorf("the area networking creates a Secret that is a token: %v", err)
	}
}

// listVersions returns the resource versions of the objects that the chart has created.
func (u *user) listVersions(env *kube.Env) map[string]string {
	u.t.Helper()

	out := map[string]string{}

	for kind, group := range map[string]string{
		"Deployment": "apps/v1", "ConfigMap": "v1", "Service": "v1", "ServiceAccount": "v1", "Ingress": "networking.k8s.io/v1",
		"ClusterRole": "rbac.authorization.k8s.io/v1", "ClusterRoleBinding": "rbac.authorization.k8s.io/v1",
		"Role": "rbac.authorization.k8s.io/v1", "RoleBinding": "rbac.authorization.k8s.io/v1",
		"NetworkPolicy": "networking.k8s.io/v1", "PodDisruptionBudget": "policy/v1",
	} {
		list := &unstructured.UnstructuredList{}
		list.SetAPIVersion(group)
		list.SetKind(kind + "List")
		u.must(env.Client.List(u.t.Context(), list, client.MatchingLabels{"app.kubernetes.io/managed-by": "Helm"}))

		for i := range list.Items {
			out[kind+" "+list.Items[i].GetNamespace()+"/"+list.Items[i].GetName()] = list.Items[i].GetResourceVersion()
		}
	}

	return out
}

// TestValuesAreChecked checks that an unknown value is rejected with its name, and that the values in
// docs/operate/install.md are accepted.
func TestValuesAreChecked(t *testing.T) {
	t.Parallel()

	u := newUser(t, kube.Start(t), "")

	page, err := os.ReadFile(root + "docs/operate/install.md")
	u.must(err)
	u.writeFile("values.yaml", regexp.MustCompile("(?s)```yaml\n(image:.*?)```").FindStringSubmatch(string(page))[1])

	output := u.runCommands("helm template hyperfleet hyperfleet-0.1.0.tgz --values values.yaml\n")
	for _, want := range []string{"image: registry.example.com/hyperfleet:v" + version, "name: hyperfleet-networking", "namespace: ci", "host: \"hyperfleet.example.com\""} {
		if !strings.Contains(output, want) {
			t.Errorf("the values in docs/operate/install.md do not result in %s", want)
		}
	}

	for value, want := range map[string]string{
		"areas.runner.enabled=true": "runner", "areas.hosts.replica=1": "replica", "ingress.enabled=true": "host",
		"areas.hosts.replicas=0": "replicas", "image.repository=": "repository", "shards[0].name=a": "namespaces",
		"shards[0].name=A,shards[0].namespaces={ci}": "name", "shards[0].name=a,shards[0].namespaces={}": "namespaces",
	} {
		output := u.runCommands("helm template hyperfleet hyperfleet-0.1.0.tgz --set " + value + " 2>&1 && exit 1 || true\n")
		if !strings.Contains(output, "schema") || !strings.Contains(output, want) {
			t.Errorf("%s: %s", value, output)
		}
	}
}

// TestValuesOfTheFirstRelease checks that the charts render the same with only the values of the first release as
// with the defaults, which is what `helm upgrade --reuse-values` does.
func TestValuesOfTheFirstRelease(t *testing.T) {
	t.Parallel()

	u := newUser(t, kube.Start(t), "")

	for chart, later := range map[string][]string{"hyperfleet": laterValues, "hyperfleet-platform": {"monitoring", "tls"}} {
		render := "helm template " + chart + " " + chart + "-0.1.0.tgz"
		want := u.runCommands(render + "\n")

		if got := u.runCommands(render + " --set " + strings.Join(later, "=null,") + "=null\n"); got != want {
			t.Errorf("%s without the values %s:\n%s", chart, later, got)
		}
	}
}
