// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/machinetemplate"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// templateFixture is a fixture with one template on its own cluster.
type templateWorld struct {
	*testing.T

	namespace string
	lab       *lab
	forge     *forge
	templates *machinetemplate.Reconciler
}

// newTemplateFixture creates a template, after change was applied, of a cluster that does not exist.
func newTemplateWorld(t *testing.T, change func(*v1alpha1.HypervisorMachineTemplateSpec)) *templateWorld {
	t.Helper()

	w := &templateWorld{
		T: t, namespace: env.Namespace(t), forge: &forge{Platform: github.NewPlatform()},
		lab: &lab{has: []hypervisor.Template{{ID: 9000, Name: "linux", Node: "one"}, {ID: 9001, Name: "linux", Node: "two"}}},
	}
	clusters := w.lab.clusters(env.Client, w.namespace)
	w.templates = &machinetemplate.Reconciler{
		Client: env.Client, Live: env.Client, Runner: &step.Reconciler{Client: env.Client, Controller: "machinetemplate"},
		Interval: time.Minute, Clusters: clusters,
		Workloads: &connect.Workloads{
			Secrets: clusters.Secrets, Platforms: map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: w.forge},
		},
	}
	template := templateOf(w.namespace, "linux", w.namespace)
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{
		GitHub: &v1alpha1.GitHubBootstrap{Organization: "acme", Credentials: secretKey("token")},
	}

	if change != nil {
		change(&template.Spec)
	}

	env.Create(w, template)

	return w
}

// createCluster creates the template's cluster, after change was applied. The cluster is connected and ready.
func (w *templateWorld) cluster(change func(*v1alpha1.HypervisorClusterSpec)) {
	w.Helper()

	cluster := clusterOf(w.namespace)
	if change != nil {
		change(&cluster.Spec)
	}

	env.Create(w, cluster)

	if _, err := w.templates.Clusters.Ensure(w.Context(), cluster); err != nil {
		w.Fatal(err)
	}

	w.ready(metav1.ConditionTrue, "Connected", "")
}

// setClusterReady writes the condition Ready of the cluster.
func (w *templateWorld) ready(status metav1.ConditionStatus, reason, message string) {
	w.Helper()

	cluster := read(w, "", w.namespace, &v1alpha1.HypervisorCluster{})
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{Type: step.Ready, Status: status, Reason: reason, Message: message})

	if err := env.Client.Status().Update(w.Context(), cluster); err != nil {
		w.Fatal(err)
	}
}

func (w *templateWorld) key() client.ObjectKey {
	return client.ObjectKey{Namespace: w.namespace, Name: "linux"}
}

// reconcileUntilStable reconciles the template three times, so that its status no longer changes, and returns
// it.
func (w *templateWorld) passes() *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	for range 3 {
		_, err := w.templates.Reconcile(w.Context(), reconcile.Request{NamespacedName: w.key()})
		if (err == nil) != (w.forge.err == nil || workload.Is(w.forge.err, workload.Rejected)) {
			w.Fatalf("reconcile, while the CI platform returns %v: %v", w.forge.err, err)
		}
	}

	return read(w, w.namespace, "linux", &v1alpha1.HypervisorMachineTemplate{})
}

// requireCondition reconciles, and checks that the template's condition and the condition Ready have the
// reason and contain the text.
func (w *templateWorld) says(condition, reason, words string) *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	template := w.passes()

	for _, name := range []string{condition, step.Ready} {
		kube.CheckCondition(w, template.Status.Conditions, name, metav1.ConditionFalse, reason, words)
	}

	return template
}

func TestTemplateBecomesReady(t *testing.T) {
	t.Parallel()

	w := newTemplateWorld(t, nil)
	makeSecrets(w, w.namespace)
	w.says("ClusterReady", "ClusterNotFound", "create it")

	w.cluster(nil)

	template := w.passes()
	if !step.IsReady(template) {
		t.Fatalf("the template is not ready: %s", step.NotReadyMessage(template))
	}

	want := []v1alpha1.ResolvedTemplate{{ID: "9000", Name: "linux", Node: "one"}, {ID: "9001", Name: "linux", Node: "two"}}
	if diff := cmp.Diff(want, template.Status.Sources); diff != "" {
		t.Errorf("sources -want +got:\n%s", diff)
	}

	if again := w.passes(); again.ResourceVersion != template.ResourceVersion {
		t.Errorf("reconciles without a change updated the status:\n%s", cmp.Diff(template.Status, again.Status))
	}
}

// If anything that a template needs is deleted, the condition names what is missing.
func TestTemplateLosesWhatItNeeds(t *testing.T) {
	t.Parallel()

	w := newTemplateWorld(t, nil)
	makeSecrets(w, w.namespace)
	w.cluster(nil)

	if template := w.passes(); len(template.Status.Sources) != 2 {
		t.Fatalf("sources %+v", template.Status.Sources)
	}

	w.ready(metav1.ConditionFalse, "Unavailable", "it does not answer")
	w.says("ClusterReady", "ClusterNotReady", "it does not answer")
	w.ready(metav1.ConditionTrue, "Connected", "")

	w.lab.err = &hypervisor.Error{Kind: hypervisor.NotFound, Reason: "TemplateMissing", Message: `there is no template "linux"`}
	if template := w.says("Resolved", "TemplateMissing", `no template "linux"`); len(template.Status.Sources) > 0 {
		t.Errorf("a template that does not exist has the sources %+v", template.Status.Sources)
	}

	w.lab.err = nil
	w.forge.err = &workload.Error{Kind: workload.Rejected, Reason: "TokenRefused", Message: "make a new token"}
	w.says("WorkloadReady", "TokenRefused", "make a new token")

	w.forge.err = errors.New("read: connection reset by peer")
	if template := w.passes(); step.IsReady(template) {
		t.Error("the template is ready although its CI platform is unreachable")
	}

	w.forge.err = nil

	if template := w.passes(); !step.IsReady(template) {
		t.Errorf("not ready although everything exists again: %s", step.NotReadyMessage(template))
	}
}

func TestTemplateIsWrong(t *testing.T) {
	t.Parallel()

	w := newTemplateWorld(t, func(spec *v1alpha1.HypervisorMachineTemplateSpec) {
		spec.CloudInit = &v1alpha1.CloudInit{UserData: "#cloud-config\nhostname: {{ .NoSuchField }}\n"}
	})
	makeSecrets(w, w.namespace)
	w.cluster(nil)
	w.says("Rendered", "CloudInitInvalid", "NoSuchField")

	w = newTemplateWorld(t, nil)
	makeSecrets(w, w.namespace)
	w.cluster(func(spec *v1alpha1.HypervisorClusterSpec) {
		spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{"another-team"}}}
	})
	w.says("Allowed", "NamespaceNotAllowed", w.namespace)
}

// The credentials of a template are kept until its last machine is deleted.
func TestTemplateOutlivesItsMachines(t *testing.T) {
	t.Parallel()

	w := newTemplateWorld(t, nil)
	makeSecrets(w, w.namespace)
	w.cluster(nil)

	template := w.passes()
	claim := makeClaim(w, claimOf(w.namespace, "one"))

	remove(w, template)
	w.says("ClaimsGone", "ClaimsLeft", "1 MachineClaim still uses the template")

	remove(w, claim)

	if _, err := w.templates.Reconcile(t.Context(), reconcile.Request{NamespacedName: w.key()}); err != nil {
		t.Fatal(err)
	}

	if err := env.Client.Get(t.Context(), w.key(), template); !apierrors.IsNotFound(err) {
		t.Errorf("after its last machine: %v", err)
	}
}
