// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/workload"
)

// invalidInput is one mistake of a user, and what the operator reports about it.
type invalidInput struct {
	model    func(*pve.Model)
	cluster  func(*v1alpha1.HypervisorCluster)
	template func(*v1alpha1.HypervisorMachineTemplate)
	// secret is the wrong token of the cluster, or of the template.
	secret string
	// clusterReason is the reason of Ready=False on the cluster, templateReason that on the template.
	clusterReason, templateReason string
	// wantParts are parts of the message: what is wrong, and the fix.
	wantParts []string
}

// invalidInputs returns the mistakes by name.
func invalidInputs() map[string]invalidInput {
	return map[string]invalidInput{
		"wrong credentials": {
			secret:        "00000000-0000-0000-0000-00000000dead",
			clusterReason: "AuthenticationFailed", wantParts: []string{"token"},
		},
		"unreachable endpoint": {
			cluster:       func(c *v1alpha1.HypervisorCluster) { c.Spec.Endpoint = "https://127.0.0.1:1/api2/json" },
			clusterReason: "Unreachable", wantParts: []string{"127.0.0.1:1"},
		},
		"untrusted certificate": {
			cluster:       func(c *v1alpha1.HypervisorCluster) { c.Spec.TLS = nil },
			clusterReason: "CertificateUntrusted", wantParts: []string{"fingerprint"},
		},
		"another server's fingerprint": {
			cluster: func(c *v1alpha1.HypervisorCluster) {
				c.Spec.TLS.Fingerprint = strings.TrimSuffix(strings.Repeat("AB:", 32), ":")
			},
			clusterReason: "CertificateUntrusted", wantParts: []string{"fingerprint"},
		},
		"missing privilege": {
			model: func(m *pve.Model) {
				m.ACL = slices.DeleteFunc(m.ACL, func(a pve.ACL) bool { return a.Path == "/storage/local" })
			},
			clusterReason: "PermissionDenied", wantParts: []string{"/storage/local", "pveum"},
		},
		"unknown node": {
			cluster:       func(c *v1alpha1.HypervisorCluster) { c.Spec.Nodes = []string{"pve9"} },
			clusterReason: "NodeNotFound", wantParts: []string{"pve9", "pve1"},
		},
		"storage without iso": {
			model: func(m *pve.Model) {
				m.Storages = slices.Clone(m.Storages)
				m.Storages[0].Content = []string{"snippets"}
			},
			clusterReason: "StorageWithoutISO", wantParts: []string{"local", "iso"},
		},
		"missing template": {
			template: func(t *v1alpha1.HypervisorMachineTemplate) {
				t.Spec.Template.Proxmox = &v1alpha1.ProxmoxTemplate{TemplateID: new(int32(4711))}
			},
			templateReason: "TemplateNotFound", wantParts: []string{"4711"},
		},
		"a VM that is no template": {
			template: func(t *v1alpha1.HypervisorMachineTemplate) {
				t.Spec.Template.Proxmox = &v1alpha1.ProxmoxTemplate{TemplateID: new(int32(101))}
			},
			templateReason: "NotATemplate", wantParts: []string{"101", "template"},
		},
		"template without cloud-init drive for builtin": {
			model: func(m *pve.Model) { m.Templates[0].NoCloudInit = true },
			template: func(t *v1alpha1.HypervisorMachineTemplate) {
				t.Spec.Template.Proxmox.CloudInitSource = "builtin"
				t.Spec.Template.Proxmox.SnippetsStorage = "local"
			},
			templateReason: "TemplateWithoutCloudInit", wantParts: []string{"cloud-init"},
		},
		"resources beyond every node": {
			template:       func(t *v1alpha1.HypervisorMachineTemplate) { t.Spec.Resources.Memory = resource.MustParse("4Ti") },
			templateReason: "ResourcesExceedNode", wantParts: []string{"memory"},
		},
		"unknown bridge": {
			template: func(t *v1alpha1.HypervisorMachineTemplate) {
				t.Spec.Network = &v1alpha1.MachineNetwork{Mode: "dhcp", Bridge: "vmbr7"}
			},
			templateReason: "BridgeNotFound", wantParts: []string{"vmbr7"},
		},
		"wrong token for GitHub": {
			secret:         "ghp_wrong",
			templateReason: "GitHubCredentialsInvalid", wantParts: []string{"token"},
		},
		"unknown repository": {
			template:       func(t *v1alpha1.HypervisorMachineTemplate) { t.Spec.Bootstrap.Config.GitHub.Repository = "nowhere" },
			templateReason: "GitHubScopeNotFound", wantParts: []string{"octo-org/nowhere"},
		},
	}
}

// TestInvalidInputIsReported checks that each mistake is reported in a condition that names the mistake and the
// fix, and that no machine is created, not even from the valid objects next to it.
func TestInvalidInputIsReported(t *testing.T) { //nolint:tparallel // its subtests share a fleet, one after the other
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	createAndStart(f)

	t.Run("inputs", func(t *testing.T) {
		for name, tc := range invalidInputs() {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				tc.check(f.ForSubtest(t), strings.ToLower(strings.NewReplacer(" ", "-", "'", "").Replace(name)))
			})
		}
	})

	if left := f.FindLeftovers(); slices.ContainsFunc(left, func(l string) bool { return !strings.HasPrefix(l, "claim ") }) {
		t.Errorf("leftovers: %s, want claims only", strings.Join(left, ", "))
	}

	if made := f.CountClones(); made > 0 {
		t.Errorf("%d VMs were created, want 0", made)
	}
}

// check creates the input's objects under the name: a claim, its template, and a cluster of its own if the input
// changes the cluster.
func (tc invalidInput) check(f *fleet.Fleet, name string) {
	f.T.Helper()

	template, claim := f.NewTemplate(), f.NewClaim(name)
	template.Name, claim.Spec.TemplateRef.Name = name, name

	var about step.Object = template

	if tc.clusterReason != "" || tc.model != nil {
		cluster := tc.newCluster(f, name)
		f.CreateCluster(cluster)
		template.Spec.HypervisorClusterRef.Name = cluster.Name

		if tc.clusterReason != "" {
			about = cluster
		}
	} else if tc.secret != "" {
		f.Create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name}, StringData: map[string]string{"pat": tc.secret},
		})

		template.Spec.Bootstrap.Config.GitHub.Credentials.SecretKeyRef.Name = name
	}

	if tc.template != nil {
		tc.template(template)
	}

	f.Create(template)
	f.Create(claim)

	checkContains(f.T, f.EventuallyCondition(about, "Ready", metav1.ConditionFalse, tc.clusterReason+tc.templateReason), tc.wantParts...)
	f.EventuallyCondition(claim, "Ready", metav1.ConditionFalse, "")
}

// newCluster returns the cluster of the input.
func (tc invalidInput) newCluster(f *fleet.Fleet, name string) *v1alpha1.HypervisorCluster {
	f.T.Helper()

	cluster := f.NewCluster()
	cluster.Name = f.Namespace + "-" + name

	if tc.secret != "" {
		f.Create(&corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: f.Namespace, Name: name}, StringData: map[string]string{"tokenSecret": tc.secret},
		})

		cluster.Spec.Credentials.TokenSecret.SecretKeyRef.Name = name
	}

	if tc.model != nil {
		model := fleet.Model()
		tc.model(&model)

		server := pvetest.New(f.T, model)
		cluster.Spec.Endpoint = server.URL() + "/api2/json"
		cluster.Spec.TLS.Fingerprint = server.Fingerprint()

		f.T.Cleanup(func() {
			if made := server.Snapshot().CreatedVMs(); len(made) > 0 {
				f.T.Errorf("VMs were created: %v", made)
			}
		})
	}

	if tc.cluster != nil {
		tc.cluster(cluster)
	}

	return cluster
}

// TestFixOfClaimWithoutPool checks that a claim without a pool names its own fields in the message about a setting, and that
// the machine is created if a person does what the message says.
func TestFixOfClaimWithoutPool(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	createAndStart(f, f.NewTemplate())

	claim := f.NewClaim("own")
	claim.Spec.WorkloadConfig.Config.GitHub.Labels = nil

	for i := range workload.MaxLabels { // the labels that every runner has are too many then
		labels := &claim.Spec.WorkloadConfig.Config.GitHub.Labels
		*labels = append(*labels, fmt.Sprintf("label-%d", i))
	}

	fixed := claim.DeepCopy()

	f.Create(claim)
	checkContains(t, f.EventuallyCondition(claim, step.Ready, metav1.ConditionFalse, "GitHubRequestRefused"),
		"change spec.workloadConfig.config.github.labels", "a MachineClaim cannot be changed: delete it and create a new one")

	changed := claim.DeepCopy()
	changed.Spec.WorkloadConfig.Config.GitHub.Labels = []string{"linux"}

	if err := f.Client.Update(t.Context(), changed); err == nil {
		t.Error("the claim was changed")
	}

	deleteObject(f, claim)
	eventuallyDeleted(f, claim)

	fixed.Spec.WorkloadConfig.Config.GitHub.Labels = []string{"linux"}
	f.Create(fixed)
	f.EventuallyReady(fixed)
}

// TestRotatedCredentialsArePickedUp checks that credentials that are rotated are used without a restart, also in a
// Secret that was deleted and that the operator keeps: those of the hypervisor, and those of the CI platform in a
// Secret that External Secrets Operator manages.
func TestRotatedCredentialsArePickedUp(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	deleteObject(f, newManagedSecret(f.Namespace, "")) // the Secret of the fleet
	f.Create(newManagedSecret(f.Namespace, githubtest.PAT))
	f.Populate(1)
	f.Start()
	f.EventuallyReady(f.NewTemplate())

	f.SetSecret("proxmox", "tokenSecret", "00000000-0000-0000-0000-00000000dead")
	f.EventuallyCondition(f.NewCluster(), "Ready", metav1.ConditionFalse, "AuthenticationFailed")

	f.SetSecret("proxmox", "tokenSecret", pve.DefaultSecret)
	f.EventuallyReady(f.NewCluster())
	f.EventuallyReady(f.NewTemplate())

	f.SetSecret("github", "pat", revoked)
	f.EventuallyCondition(f.NewTemplate(), "Ready", metav1.ConditionFalse, "")

	deleteObject(f, newManagedSecret(f.Namespace, "")) // the operator keeps it
	f.SetSecret("github", "pat", githubtest.PAT)
	f.EventuallyReady(f.NewTemplate())

	queueJobs(f, 1)
	f.EventuallyJobsDone(1)
	f.EventuallyClean()
}

// TestSecretsOfOtherNamespacesMustAllowIt checks that a namespace can use another namespace's Secret only if the
// Secret's annotation allows it.
func TestSecretsOfOtherNamespacesMustAllowIt(t *testing.T) {
	t.Parallel()

	f := newFastFleet(t, fleet.Options{})
	other := env.Namespace(t)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: other, Name: "theirs"},
		StringData: map[string]string{"pat": "ghp_simulatedpersonalaccesstoken0000000"},
	}
	f.Create(secret)

	template := f.NewTemplate()
	template.Spec.Bootstrap.Config.GitHub.Credentials.SecretKeyRef = v1alpha1.SecretKeySelector{
		Name: "theirs", Namespace: other, Key: "pat",
	}

	createAndStart(f, template)
	f.EventuallyCondition(template, "Ready", metav1.ConditionFalse, "SecretNotAllowed")
	updateObject(f, secret, func() {
		secret.Annotations = map[string]string{v1alpha1.AnnotationAllowedNamespaces: "x, " + f.Namespace}
	})
	f.EventuallyReady(template)
}
