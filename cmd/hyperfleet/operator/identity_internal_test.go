// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// newCluster returns a client of a cluster whose namespace kube-system has the given UID.
func newCluster(t *testing.T, uid types.UID, objects ...client.Object) client.Client {
	t.Helper()

	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}

	objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: uid}})

	return fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
}

func uidIn(t *testing.T, c client.Client, change func(*config.OperatorConfig)) string {
	t.Helper()

	cfg := config.Default()
	if change != nil {
		change(&cfg)
	}

	out, err := loadIdentity(t.Context(), c, c, cfg)
	if err != nil {
		t.Fatal(err)
	}

	return out.uid
}

// TestIdentityOutlivesAReinstall checks that a reinstalled operator has the same UID, and that an operator in another
// namespace or cluster has another UID.
func TestIdentityOutlivesAReinstall(t *testing.T) {
	t.Parallel()

	first := uidIn(t, newCluster(t, "a"), nil)

	if again := uidIn(t, newCluster(t, "a"), nil); again != first {
		t.Errorf("installed again it is %s, was %s", again, first)
	}

	if other := uidIn(t, newCluster(t, "b"), nil); other == first {
		t.Error("it is the same in another cluster")
	}

	if other := uidIn(t, newCluster(t, "a"), func(c *config.OperatorConfig) { c.Namespace = "elsewhere" }); other == first {
		t.Error("it is the same in another namespace")
	}

	if set := uidIn(t, newCluster(t, "a"), func(c *config.OperatorConfig) { c.OperatorUID = "mine" }); set != "mine" {
		t.Errorf("operatorUID is not taken: %s", set)
	}
}

// TestAnotherIdentityDoesNotStart checks that the operator does not start if machines of another operator UID exist, and
// that the error names the fix.
func TestAnotherIdentityDoesNotStart(t *testing.T) {
	t.Parallel()

	claim := &v1alpha1.MachineClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "pool-1"}}
	claim.Status.VMRef = &v1alpha1.VMReference{HypervisorCluster: "pve", VMID: "100003", OperatorUID: "old"}
	c := newCluster(t, "a", claim)

	_, err := loadIdentity(t.Context(), c, c, config.Default())
	if err == nil || !strings.Contains(err.Error(), "team/pool-1 has VM 100003 of operator old: set operatorUID: old") {
		t.Errorf("identify() = %v", err)
	}

	if got := uidIn(t, c, func(c *config.OperatorConfig) { c.OperatorUID = "old" }); got != "old" {
		t.Errorf("as the old one: %s", got)
	}

	// Other areas create no machines.
	uidIn(t, c, func(c *config.OperatorConfig) { c.Controllers = []string{config.AreaHosts} })
}
