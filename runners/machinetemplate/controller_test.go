// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machinetemplate_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
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

var env *kube.Env

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kube.Main(m, func(e *kube.Env) { env = e },
		kube.WithCRDs("../../deploy/crds"), kube.WithScheme(v1alpha1.AddToScheme))
}

// lab is a hypervisor that has the templates that the test has it have.
type lab struct {
	hypervisor.Connection

	has []hypervisor.Template
	err error
}

func (l *lab) Resolve(context.Context, hypervisor.TemplateRef, hypervisor.Shape) ([]hypervisor.Template, error) {
	return l.has, l.err
}

// forge is GitHub, but that it is never called.
type forge struct {
	github.Platform
	workload.Provider

	err error
}

func (f *forge) Open(workload.Config) (workload.Provider, error) { return f, nil }

func (f *forge) Validate(context.Context) error { return f.err }

// world is one template on a cluster of its own.
type world struct {
	*testing.T

	namespace string
	lab       *lab
	forge     *forge
	templates *machinetemplate.Reconciler
}

// newWorld makes a template, after change, of a cluster that there is not.
func newWorld(t *testing.T, change func(*v1alpha1.HypervisorMachineTemplateSpec)) *world {
	t.Helper()

	w := &world{
		T: t, namespace: env.Namespace(t), forge: &forge{Platform: github.NewPlatform()},
		lab: &lab{has: []hypervisor.Template{{ID: 9000, Name: "linux", Node: "one"}, {ID: 9001, Name: "linux", Node: "two"}}},
	}
	secrets := &connect.Secrets{Reader: env.Client, OperatorNamespace: w.namespace}
	w.templates = &machinetemplate.Reconciler{
		Client: env.Client, Live: env.Client, Runner: &step.Runner{Client: env.Client, Controller: "machinetemplate"},
		Interval: time.Minute,
		Clusters: &connect.Clusters{Secrets: secrets, Factories: map[string]hypervisor.Factory{
			v1alpha1.ProviderProxmox: func(hypervisor.Config, hypervisor.Options) (hypervisor.Connection, error) { return w.lab, nil },
		}},
		Workloads: &connect.Workloads{
			Secrets: secrets, Platforms: map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: w.forge},
		},
	}
	template := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "linux"},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: w.namespace},
			Template:             v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: "linux"}},
			Resources:            v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
			Bootstrap: v1alpha1.Bootstrap{Config: &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
				Organization: "acme", Credentials: key("token"),
			}}},
		},
	}

	if change != nil {
		change(&template.Spec)
	}

	env.Create(w, template)

	return w
}

func key(name string) *v1alpha1.SecretValueSource {
	return &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "secrets", Key: name}}
}

func (w *world) secret() {
	w.Helper()
	env.Create(w, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "secrets"},
		Data:       map[string][]byte{"id": []byte("ci@pve!fleet"), "secret": []byte("s3cret"), "token": []byte("ghp_x")},
	})
}

// cluster makes the template's cluster, after change: connected, and ready.
func (w *world) cluster(change func(*v1alpha1.HypervisorClusterSpec)) {
	w.Helper()

	cluster := &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: w.namespace},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: v1alpha1.ProviderProxmox, Endpoint: "https://pve.example:8006/api2/json",
			Credentials: v1alpha1.HypervisorCredentials{TokenID: key("id"), TokenSecret: key("secret")},
		},
	}
	if change != nil {
		change(&cluster.Spec)
	}

	env.Create(w, cluster)

	if _, err := w.templates.Clusters.Ensure(w.Context(), cluster); err != nil {
		w.Fatal(err)
	}

	w.ready(metav1.ConditionTrue, "Connected", "")
}

// ready writes whether the cluster is.
func (w *world) ready(status metav1.ConditionStatus, reason, message string) {
	w.Helper()

	var cluster v1alpha1.HypervisorCluster
	if err := env.Client.Get(w.Context(), client.ObjectKey{Name: w.namespace}, &cluster); err != nil {
		w.Fatal(err)
	}

	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{Type: step.Ready, Status: status, Reason: reason, Message: message})

	if err := env.Client.Status().Update(w.Context(), &cluster); err != nil {
		w.Fatal(err)
	}
}

func (w *world) key() client.ObjectKey {
	return client.ObjectKey{Namespace: w.namespace, Name: "linux"}
}

// passes until the template is as it stays, and gives it.
func (w *world) passes() *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	for range 3 {
		_, err := w.templates.Reconcile(w.Context(), reconcile.Request{NamespacedName: w.key()})
		if (err == nil) != (w.forge.err == nil || workload.Is(w.forge.err, workload.Rejected)) {
			w.Fatalf("reconcile, while the CI platform says %v: %v", w.forge.err, err)
		}
	}

	var out v1alpha1.HypervisorMachineTemplate
	if err := env.Client.Get(w.Context(), w.key(), &out); err != nil {
		w.Fatal(err)
	}

	return &out
}

// says makes passes, and makes sure that the template's condition and with it Ready have the
// reason and the words.
func (w *world) says(condition, reason, words string) *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	template := w.passes()

	for _, name := range []string{condition, step.Ready} {
		kube.Condition(w, template.Status.Conditions, name, metav1.ConditionFalse, reason, words)
	}

	return template
}

func TestTemplateBecomesReady(t *testing.T) {
	t.Parallel()

	w := newWorld(t, nil)
	w.secret()
	w.says("ClusterReady", "ClusterNotFound", "create it")

	w.cluster(nil)

	template := w.passes()
	if !step.IsReady(template) {
		t.Fatalf("the template is not ready: %s", step.WhyNot(template))
	}

	want := []v1alpha1.ResolvedTemplate{{ID: "9000", Name: "linux", Node: "one"}, {ID: "9001", Name: "linux", Node: "two"}}
	if diff := cmp.Diff(want, template.Status.Sources); diff != "" {
		t.Errorf("sources -want +got:\n%s", diff)
	}

	if again := w.passes(); again.ResourceVersion != template.ResourceVersion {
		t.Errorf("passes without news wrote:\n%s", cmp.Diff(template.Status, again.Status))
	}
}

// Whatever a template needs may be taken away, and is missed by its name.
func TestTemplateLosesWhatItNeeds(t *testing.T) {
	t.Parallel()

	w := newWorld(t, nil)
	w.secret()
	w.cluster(nil)

	w.ready(metav1.ConditionFalse, "Unavailable", "it does not answer")
	w.says("ClusterReady", "ClusterNotReady", "it does not answer")
	w.ready(metav1.ConditionTrue, "Connected", "")

	w.lab.err = &hypervisor.Error{Kind: hypervisor.NotFound, Reason: "TemplateMissing", Message: `there is no template "linux"`}
	if template := w.says("Resolved", "TemplateMissing", `no template "linux"`); len(template.Status.Sources) > 0 {
		t.Errorf("a template that is gone has the sources %+v", template.Status.Sources)
	}

	w.lab.err = nil
	w.forge.err = &workload.Error{Kind: workload.Rejected, Reason: "TokenRefused", Message: "make a new token"}
	w.says("WorkloadReady", "TokenRefused", "make a new token")

	w.forge.err = errors.New("read: connection reset by peer")
	if template := w.passes(); step.IsReady(template) {
		t.Error("the template is ready, and its CI platform does not answer")
	}

	w.forge.err = nil

	if template := w.passes(); !step.IsReady(template) {
		t.Errorf("all is there again: %s", step.WhyNot(template))
	}
}

func TestTemplateIsWrong(t *testing.T) {
	t.Parallel()

	w := newWorld(t, func(spec *v1alpha1.HypervisorMachineTemplateSpec) {
		spec.CloudInit = &v1alpha1.CloudInit{UserData: "#cloud-config\nhostname: {{ .NoSuchField }}\n"}
	})
	w.secret()
	w.cluster(nil)
	w.says("Rendered", "CloudInitInvalid", "NoSuchField")

	w = newWorld(t, nil)
	w.secret()
	w.cluster(func(spec *v1alpha1.HypervisorClusterSpec) {
		spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{"another-team"}}}
	})
	w.says("Allowed", "NamespaceNotAllowed", w.namespace)
}

// A template's credentials are needed until its last machine is gone.
func TestTemplateOutlivesItsMachines(t *testing.T) {
	t.Parallel()

	w := newWorld(t, nil)
	w.secret()
	w.cluster(nil)

	template := w.passes()
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.namespace, Name: "one"},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: template.Name},
			WorkloadConfig: v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{
				GitHub: &v1alpha1.GitHubActionsConfig{Organization: "acme"},
			}},
		},
	}
	env.Create(w, claim)

	if err := env.Client.Delete(t.Context(), template); err != nil {
		t.Fatal(err)
	}

	w.says("ClaimsGone", "ClaimsLeft", "1 MachineClaim is made from it")

	if err := env.Client.Delete(t.Context(), claim); err != nil {
		t.Fatal(err)
	}

	if _, err := w.templates.Reconcile(t.Context(), reconcile.Request{NamespacedName: w.key()}); err != nil {
		t.Fatal(err)
	}

	if err := env.Client.Get(t.Context(), w.key(), template); !apierrors.IsNotFound(err) {
		t.Errorf("after its last machine: %v", err)
	}
}
