// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
)

func newCluster(name string, allowed ...v1alpha1.NamespaceAccess) *v1alpha1.HypervisorCluster {
	value := &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "s", Key: "k"}}

	return &v1alpha1.HypervisorCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.HypervisorClusterSpec{
			Provider: "proxmox", Endpoint: "https://pve.example.com:8006/api2/json",
			Credentials:       v1alpha1.HypervisorCredentials{TokenID: value, TokenSecret: value},
			AllowedNamespaces: allowed,
		},
	}
}

func newTemplate(cluster, namespace string) *v1alpha1.HypervisorMachineTemplate {
	return &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "policy-"},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			HypervisorClusterRef: v1alpha1.LocalObjectReference{Name: cluster},
			Template:             v1alpha1.TemplateSource{Proxmox: &v1alpha1.ProxmoxTemplate{TemplateName: "debian-13"}},
			Resources:            v1alpha1.MachineResources{CPU: 1, Memory: resource.MustParse("1Gi")},
		},
	}
}

// waitForCreate creates a template until it is accepted or rejected as wanted, because the API server applies
// policies and clusters with a delay.
func waitForCreate(
	t *testing.T, template *v1alpha1.HypervisorMachineTemplate, made bool,
) (*v1alpha1.HypervisorMachineTemplate, error) {
	t.Helper()

	var (
		object *v1alpha1.HypervisorMachineTemplate
		last   error
	)

	_ = wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		object = template.DeepCopy()

		last = env.Client.Create(ctx, object)
		if last == nil && !made {
			return false, env.Client.Delete(ctx, object)
		}

		if apierrors.IsInvalid(last) {
			return false, last
		}

		return (last == nil) == made, nil
	})

	return object, last
}

// The policy in the manifests rejects exactly the objects that the operator would reject.
func TestAllowedNamespacesAtAdmission(t *testing.T) {
	t.Parallel()

	env.Apply(t, "../../deploy/base/tenancy.yaml")

	labelled := env.Namespace(t)
	other := env.Namespace(t)

	labels := map[string]string{"policy.example.com/tier": "gold"}
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{%q:%q}}}`, "policy.example.com/tier", "gold")

	space := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: labelled}}
	if err := env.Client.Patch(t.Context(), space, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		t.Fatal(err)
	}

	many := make([]string, 256)
	for i := range many {
		many[i] = fmt.Sprintf("%s-%03d", strings.Repeat("n", 59), i)
	}

	full := make([]v1alpha1.NamespaceAccess, 64)
	for i := range full {
		full[i] = v1alpha1.NamespaceAccess{Names: many}
	}

	full[63] = v1alpha1.NamespaceAccess{Names: []string{labelled}}

	selector := func(labels map[string]string) v1alpha1.NamespaceAccess {
		return v1alpha1.NamespaceAccess{Selector: &v1alpha1.NamespaceSelector{MatchLabels: labels}}
	}

	for name, entries := range map[string][]v1alpha1.NamespaceAccess{
		"open":     nil,
		"by-name":  {{Names: []string{"a", labelled}}},
		"by-label": {selector(labels)},
		"another":  {{Names: []string{"a"}}, selector(map[string]string{"policy.example.com/tier": "silver"})},
		"both":     {{Names: []string{"a"}}, {Names: []string{other}}, selector(labels)},
		"all":      {selector(nil)},
		"two":      {selector(map[string]string{"policy.example.com/tier": "gold", "b": "c"})},
		"full":     full,
	} {
		cluster := newCluster("policy-"+name, entries...)
		if err := env.Client.Create(t.Context(), cluster); err != nil {
			t.Fatalf("%s: %v", name, err)
		}

		for _, namespace := range []string{labelled, other} {
			_, want := tenancy.FindEntry(cluster, namespace, tenancy.NewLabelsFunc(t.Context(), env.Client, namespace))
			_, err := waitForCreate(t, newTemplate(cluster.Name, namespace), want == nil)

			refused := apierrors.IsForbidden(err) && strings.Contains(err.Error(), tenancy.ReasonNamespace)
			if refused != (want != nil) || err != nil && !refused {
				t.Errorf("%s in %s: error %v, the operator's error %v", name, namespace, err, want)
			}
		}
	}

	// A cluster that does not exist yet, and a cluster whose list of namespaces becomes shorter.
	if _, err := waitForCreate(t, newTemplate("policy-later", other), true); err != nil {
		t.Errorf("a template before its cluster: %v", err)
	}

	checkNarrowedList(t, labelled, other)
}

// checkNarrowedList removes a namespace from a cluster's list. Users can then still change and delete the
// template, but they cannot create another template for the cluster.
func checkNarrowedList(t *testing.T, labelled, other string) {
	t.Helper()

	cluster := newCluster("policy-narrow", v1alpha1.NamespaceAccess{Names: []string{other}})
	if err := env.Client.Create(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}

	old, err := waitForCreate(t, newTemplate(cluster.Name, other), true)
	if err != nil {
		t.Fatal(err)
	}

	cluster.Spec.AllowedNamespaces[0].Names = []string{labelled}
	if err := env.Client.Update(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}

	if _, err := waitForCreate(t, newTemplate(cluster.Name, other), false); !apierrors.IsForbidden(err) {
		t.Errorf("another template: %v", err)
	}

	old.Labels = map[string]string{"a": "b"}
	if err := env.Client.Update(t.Context(), old); err != nil {
		t.Errorf("update of the existing template: %v", err)
	}

	if err := env.Client.Delete(t.Context(), old); err != nil {
		t.Errorf("deletion of the existing template: %v", err)
	}

	elsewhere, err := waitForCreate(t, newTemplate("policy-open", other), true)
	if err != nil {
		t.Fatal(err)
	}

	elsewhere.Spec.HypervisorClusterRef.Name = cluster.Name
	if err := env.Client.Update(t.Context(), elsewhere); err == nil {
		t.Error("a template was led to a cluster that is not for its namespace")
	}
}
