// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/machinetemplate"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// templateFixture is a fixture with one template on its own cluster.
type templateFixture struct {
	*testing.T

	namespace      string
	fakeHypervisor *fakeHypervisor
	platform       *fakePlatform
	reconciler     *machinetemplate.Reconciler
}

// newTemplateFixture creates a template, after change was applied, of a cluster that does not exist.
func newTemplateFixture(t *testing.T, change func(*v1alpha1.HypervisorMachineTemplateSpec)) *templateFixture {
	t.Helper()

	w := &templateFixture{
		T: t, namespace: env.Namespace(t), platform: &fakePlatform{Platform: github.NewPlatform()},
		fakeHypervisor: &fakeHypervisor{templates: []hypervisor.Template{{ID: 9000, Name: "linux", Node: "one"}, {ID: 9001, Name: "linux", Node: "two"}}},
	}
	clusters := w.fakeHypervisor.newClusters(env.Client, w.namespace)
	w.reconciler = &machinetemplate.Reconciler{
		Client: env.Client, Live: env.Client, StepReconciler: &step.Reconciler{Client: env.Client, Controller: "machinetemplate"},
		Interval: time.Minute, Clusters: clusters, Keeper: newKeeper(t), Clock: clock.RealClock{},
		Workloads: &connect.Workloads{
			Secrets: clusters.Secrets, Platforms: map[string]workload.Platform{v1alpha1.WorkloadGitHubActions: w.platform},
		},
	}
	template := newTemplate(w.namespace, "linux", w.namespace)
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{
		GitHub: &v1alpha1.GitHubBootstrap{Organization: "acme", Credentials: newSecretSource("token")},
	}

	if change != nil {
		change(&template.Spec)
	}

	env.Create(w, template)

	return w
}

// createCluster creates the template's cluster, after change was applied. The cluster is connected and ready.
func (w *templateFixture) createCluster(change func(*v1alpha1.HypervisorClusterSpec)) {
	w.Helper()

	cluster := newCluster(w.namespace)
	if change != nil {
		change(&cluster.Spec)
	}

	env.Create(w, cluster)

	if _, err := w.reconciler.Clusters.Ensure(w.Context(), cluster); err != nil {
		w.Fatal(err)
	}

	w.setClusterReady(metav1.ConditionTrue, "Connected", "")
}

// setClusterReady writes the condition Ready of the cluster.
func (w *templateFixture) setClusterReady(status metav1.ConditionStatus, reason, message string) {
	w.Helper()

	cluster := getObject(w, "", w.namespace, &v1alpha1.HypervisorCluster{})
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{Type: step.Ready, Status: status, Reason: reason, Message: message})

	if err := env.Client.Status().Update(w.Context(), cluster); err != nil {
		w.Fatal(err)
	}
}

func (w *templateFixture) objectKey() client.ObjectKey {
	return client.ObjectKey{Namespace: w.namespace, Name: "linux"}
}

// reconcileUntilStable reconciles the template three times, so that its status no longer changes, and returns
// it.
func (w *templateFixture) reconcileUntilStable() *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	for range 3 {
		_, err := w.reconciler.Reconcile(w.Context(), reconcile.Request{NamespacedName: w.objectKey()})
		if (err == nil) != (w.platform.err == nil || workload.Is(w.platform.err, workload.Rejected)) {
			w.Fatalf("reconcile, while the CI platform returns %v: %v", w.platform.err, err)
		}
	}

	return getObject(w, w.namespace, "linux", &v1alpha1.HypervisorMachineTemplate{})
}

// requireCondition reconciles, and checks that the template's condition and the condition Ready have the
// reason and contain the text.
func (w *templateFixture) requireCondition(condition, reason, words string) *v1alpha1.HypervisorMachineTemplate {
	w.Helper()

	template := w.reconcileUntilStable()

	for _, name := range []string{condition, step.Ready} {
		kube.CheckCondition(w, template.Status.Conditions, name, metav1.ConditionFalse, reason, words)
	}

	return template
}

func TestTemplateBecomesReady(t *testing.T) {
	t.Parallel()

	w := newTemplateFixture(t, nil)
	createSecrets(w, w.namespace)
	w.requireCondition("ClusterReady", "ClusterNotFound", "create it")

	w.createCluster(nil)

	template := w.reconcileUntilStable()
	if !step.IsReady(template) {
		t.Fatalf("the template is not ready: %s", step.NotReadyMessage(template))
	}

	want := []v1alpha1.ResolvedTemplate{{ID: "9000", Name: "linux", Node: "one"}, {ID: "9001", Name: "linux", Node: "two"}}
	if diff := cmp.Diff(want, template.Status.Sources); diff != "" {
		t.Errorf("sources -want +got:\n%s", diff)
	}

	if again := w.reconcileUntilStable(); again.ResourceVersion != template.ResourceVersion {
		t.Errorf("reconciles without a change updated the status:\n%s", cmp.Diff(template.Status, again.Status))
	}
}

// A template without a number, as on libvirt, may exist on several hosts.
func TestTemplateOnSeveralHosts(t *testing.T) {
	t.Parallel()

	w := newTemplateFixture(t, nil)
	w.fakeHypervisor.templates = []hypervisor.Template{{Name: "linux", Node: "one"}, {Name: "linux", Node: "two"}}

	createSecrets(w, w.namespace)
	w.createCluster(nil)

	template := w.reconcileUntilStable()
	want := []v1alpha1.ResolvedTemplate{{ID: "one/linux", Name: "linux", Node: "one"}, {ID: "two/linux", Name: "linux", Node: "two"}}

	if diff := cmp.Diff(want, template.Status.Sources); diff != "" {
		t.Errorf("sources -want +got:\n%s", diff)
	}
}

// If anything that a template needs is deleted, the condition names what is missing.
func TestTemplateWithMissingDependencies(t *testing.T) {
	t.Parallel()

	w := newTemplateFixture(t, nil)
	createSecrets(w, w.namespace)
	env.Create(w, newCluster("0-"+w.namespace)) // another cluster, which is the first in a list and is not ready
	w.createCluster(nil)

	if template := w.reconcileUntilStable(); len(template.Status.Sources) != 2 {
		t.Fatalf("sources %+v", template.Status.Sources)
	}

	w.setClusterReady(metav1.ConditionFalse, "Unavailable", "it does not answer")
	w.requireCondition("ClusterReady", "ClusterNotReady", "it does not answer")
	w.setClusterReady(metav1.ConditionTrue, "Connected", "")

	w.fakeHypervisor.err = &hypervisor.Error{Kind: hypervisor.NotFound, Reason: "TemplateMissing", Message: `there is no template "linux"`}
	if template := w.requireCondition("Resolved", "TemplateMissing", `no template "linux"`); len(template.Status.Sources) > 0 {
		t.Errorf("a template that does not exist has the sources %+v", template.Status.Sources)
	}

	w.fakeHypervisor.err = nil
	w.platform.err = &workload.Error{Kind: workload.Rejected, Reason: "TokenRefused", Message: "make a new token"}
	w.requireCondition("WorkloadReady", "TokenRefused", "make a new token")

	w.platform.err = errors.New("read: connection reset by peer")
	if template := w.reconcileUntilStable(); step.IsReady(template) {
		t.Error("the template is ready although its CI platform is unreachable")
	}

	w.platform.err = nil

	if template := w.reconcileUntilStable(); !step.IsReady(template) {
		t.Errorf("not ready although everything exists again: %s", step.NotReadyMessage(template))
	}
}

func TestInvalidTemplate(t *testing.T) {
	t.Parallel()

	w := newTemplateFixture(t, func(spec *v1alpha1.HypervisorMachineTemplateSpec) {
		spec.CloudInit = &v1alpha1.CloudInit{UserData: "#cloud-config\nhostname: {{ .NoSuchField }}\n"}
	})
	createSecrets(w, w.namespace)
	w.createCluster(nil)
	w.requireCondition("Rendered", "CloudInitInvalid", "NoSuchField")

	w = newTemplateFixture(t, nil)
	createSecrets(w, w.namespace)
	w.createCluster(func(spec *v1alpha1.HypervisorClusterSpec) {
		spec.AllowedNamespaces = []v1alpha1.NamespaceAccess{{Names: []string{"another-team"}}}
	})
	w.requireCondition("Allowed", "NamespaceNotAllowed", w.namespace)
}

// The credentials of a template are kept until its last machine is deleted.
func TestTemplateOutlivesItsMachines(t *testing.T) {
	t.Parallel()

	w := newTemplateFixture(t, nil)
	createSecrets(w, w.namespace)
	w.createCluster(nil)

	template := w.reconcileUntilStable()
	claim := createClaim(w, newClaim(w.namespace, "one"))

	deleteObject(w, template)
	w.requireCondition("ClaimsGone", "ClaimsLeft", "1 MachineClaim still uses the template")

	deleteObject(w, claim)

	if _, err := w.reconciler.Reconcile(t.Context(), reconcile.Request{NamespacedName: w.objectKey()}); err != nil {
		t.Fatal(err)
	}

	if err := env.Client.Get(t.Context(), w.objectKey(), template); !apierrors.IsNotFound(err) {
		t.Errorf("after its last machine: %v", err)
	}
}

// The operating system is that of the template on the hypervisor, unless the spec names another one.
func TestOperatingSystemOfTemplate(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		declared  string
		found     []string
		isWindows bool
		words     string
	}{
		"nothing is recorded":     {found: []string{"", ""}},
		"found":                   {found: []string{"", "windows"}, isWindows: true},
		"said":                    {declared: "windows", found: []string{"", ""}, isWindows: true},
		"said and found":          {declared: "windows", found: []string{"windows", "windows"}, isWindows: true},
		"another one is said":     {declared: "linux", found: []string{"windows", ""}, words: "records the operating system windows for 9000, and the template names linux"},
		"two different are found": {found: []string{"linux", "windows"}, words: "records the operating system windows for 9001, and linux for another one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newTemplateFixture(t, func(spec *v1alpha1.HypervisorMachineTemplateSpec) { spec.Bootstrap.OS = tc.declared })
			for i, found := range tc.found {
				w.fakeHypervisor.templates[i].OS = found
			}

			createSecrets(w, w.namespace)
			w.createCluster(nil)

			if tc.words != "" {
				w.requireCondition("Resolved", "OSMismatch", tc.words)

				return
			}

			if template := w.reconcileUntilStable(); !step.IsReady(template) || template.IsWindows() != tc.isWindows {
				t.Errorf("Windows: %t, %+v", template.IsWindows(), template.Status.Conditions)
			}
		})
	}
}

// Settings that machines with Windows do not have are refused before the first machine is created, also if only the
// hypervisor records the operating system. A record that was corrected takes effect.
func TestSettingsWithoutWindows(t *testing.T) {
	t.Parallel()

	static := &v1alpha1.MachineNetwork{
		Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{IPAddress: "192.0.2.9", Netmask: "24", Gateway: "192.0.2.1"},
	}
	pool := &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{Pool: &v1alpha1.AddressPool{
		Addresses: []v1alpha1.AddressRange{"192.0.2.8/29"}, Gateway: []v1alpha1.IPAddress{"192.0.2.1"},
	}}}

	for name, tc := range map[string]struct {
		change func(*v1alpha1.HypervisorMachineTemplateSpec)
		reason string
	}{
		"a static address":      {func(spec *v1alpha1.HypervisorMachineTemplateSpec) { spec.Network = static }, "NetworkUnsupported"},
		"an address of a pool":  {func(spec *v1alpha1.HypervisorMachineTemplateSpec) { spec.Network = pool }, "NetworkUnsupported"},
		"a delivery by the ISO": {func(spec *v1alpha1.HypervisorMachineTemplateSpec) { spec.Bootstrap.Delivery = v1alpha1.DeliveryISO }, "BootstrapDeliveryUnsupported"},
		"network data of the template": {func(spec *v1alpha1.HypervisorMachineTemplateSpec) {
			spec.Network, spec.CloudInit = static, &v1alpha1.CloudInit{NetworkData: "version: 2\nethernets:\n  eth0: {dhcp4: true}\n"}
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			w := newTemplateFixture(t, tc.change)
			w.reconciler.Settings.BootstrapServices = map[string]vmspec.Program{"x64": {Content: strings.NewReader("p"), Size: 1, SHA256: "148de9c5a7a44d19e56cd9ae1a554bf67847afb0c58f6e12fa29ac7ddfca9940"}}
			w.fakeHypervisor.templates[0].OS = v1alpha1.OSWindows

			createSecrets(w, w.namespace)
			w.createCluster(nil)

			if tc.reason == "" {
				if template := w.reconcileUntilStable(); !step.IsReady(template) {
					t.Errorf("%+v", template.Status.Conditions)
				}

				return
			}

			w.requireCondition("Resolved", tc.reason, "Windows")

			w.fakeHypervisor.templates[0].OS = v1alpha1.OSLinux

			if template := w.reconcileUntilStable(); template.IsWindows() || !meta.IsStatusConditionTrue(template.Status.Conditions, "Resolved") {
				t.Errorf("after the hypervisor's record was corrected: %+v", template.Status)
			}
		})
	}
}
