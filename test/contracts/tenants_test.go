// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package contracts_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor/tenancy"
)

// readTenantsGuide returns the objects of the guide, in order.
func readTenantsGuide(t *testing.T) []*unstructured.Unstructured {
	t.Helper()

	raw, err := os.ReadFile("../../docs/guides/tenants.md")
	if err != nil {
		t.Fatal(err)
	}

	var out []*unstructured.Unstructured

	for _, block := range regexp.MustCompile("(?s)```yaml\n(apiVersion.*?)```").FindAllStringSubmatch(string(raw), -1) {
		for text := range strings.SplitSeq(block[1], "\n---\n") {
			out = append(out, parseObject(t, text))
		}
	}

	return out
}

// A team can do in its namespace what the guide says, and nothing that the guide excludes.
func TestTenantsGuide(t *testing.T) {
	t.Parallel()

	team, err := client.New(env.User(t, "alice", "team-a"), client.Options{Scheme: env.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}

	ensureNamespace(t, "hyperfleet-system")

	for _, object := range readTenantsGuide(t) {
		// The team creates the objects that the guide assigns to it.
		as := env.Client
		if kind := object.GetKind(); kind == "HypervisorMachineTemplate" || kind == "RunnerPool" {
			as = team
		}

		if err := as.Create(t.Context(), object, client.FieldOwner("guide")); err != nil {
			t.Fatalf("create %s %s: %v", object.GetKind(), object.GetName(), err)
		}
	}

	for what, try := range map[string]func() error{
		"read the shared Secret": func() error {
			return team.Get(t.Context(), client.ObjectKey{Namespace: "hyperfleet-system", Name: "github-team-a"}, &corev1.Secret{})
		},
		"list its own Secrets": func() error { return team.List(t.Context(), &corev1.SecretList{}, client.InNamespace("team-a")) },
		"read the HypervisorCluster": func() error {
			return team.Get(t.Context(), client.ObjectKey{Name: "shared"}, &v1alpha1.HypervisorCluster{})
		},
		"list other namespaces' jobs": func() error { return team.List(t.Context(), &v1alpha1.RunnerJobList{}) },
		"label its namespace": func() error {
			return team.Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}},
				client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"example.com/tier":"gold"}}}`)))
		},
		"write a status": func() error {
			pool := &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "debian"}}

			return team.Status().Patch(t.Context(), pool, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"replicas":7}}`)))
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("the team can %s: %v", what, err)
		}
	}

	checkAccess(t)
}

// checkAccess checks the access of the guide's template to the guide's cluster.
func checkAccess(t *testing.T) {
	t.Helper()

	var (
		cluster  v1alpha1.HypervisorCluster
		template v1alpha1.HypervisorMachineTemplate
	)

	for key, object := range map[client.ObjectKey]client.Object{
		{Name: "shared"}: &cluster, {Namespace: "team-a", Name: "debian"}: &template,
	} {
		if err := env.Client.Get(t.Context(), key, object); err != nil {
			t.Fatal(err)
		}
	}

	entry, err := tenancy.FindEntry(&cluster, "team-a", nil)
	if err != nil {
		t.Fatal(err)
	}

	if err := tenancy.CheckTemplate(entry, &cluster, &template); err != nil {
		t.Errorf("the guide's template is not allowed: %v", err)
	}

	labelled, err := tenancy.FindEntry(&cluster, "team-b", func() (map[string]string, error) {
		return map[string]string{"example.com/tier": "standard"}, nil
	})
	if err != nil || labelled.Quota == nil || *labelled.Quota.Machines != 5 {
		t.Errorf("a namespace of the tier gets %v, %v", labelled, err)
	}
}
