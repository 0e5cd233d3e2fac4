// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package networking_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// The kubeconfig with which machines are drained stays, if somebody deletes it, until the pool names another one or the
// last machine of the pool is gone.
func TestDrainKubeconfigIsKept(t *testing.T) {
	w := newPoolFixture(t, 1, "10.0.1.0-10.0.1.9")
	secrets := map[string]*corev1.Secret{}

	for _, name := range []string{"old", "new"} {
		secrets[name] = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: w.pool.Namespace, Name: name}}
		env.Create(t, secrets[name])
		w.changePool(func(spec *infrav1.KubevirtNodePoolSpec) {
			spec.Drain = &infrav1.NodeDrain{
				KubeconfigSecretRef: infrav1.LocalSecretKeySelector{Name: name, Key: "kubeconfig"},
			}
		})

		if name == "old" {
			w.must(env.Client.Delete(t.Context(), secrets[name]))
		}
	}

	requireSecrets := func(when string, want map[string]bool) {
		t.Helper()

		for name, secret := range secrets {
			err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(secret), secret)
			if exists := err == nil; exists != want[name] || err != nil && !apierrors.IsNotFound(err) {
				t.Errorf("%s: the Secret %s exists: %t (%v), finalizers %v", when, name, exists, err, secret.Finalizers)
			}
		}
	}
	requireSecrets("the pool names the new Secret", map[string]bool{"new": true})

	machines, _ := w.listRemaining()
	if len(machines) != 1 {
		t.Fatalf("%d machines", len(machines))
	}

	machines[0].Finalizers = append(machines[0].Finalizers, "test.hyperfleet.io/machine")
	w.must(env.Client.Update(t.Context(), &machines[0]))
	w.must(env.Client.Delete(t.Context(), secrets["new"]))
	w.must(env.Client.Delete(t.Context(), w.pool))
	w.reconcilePool()
	requireSecrets("a machine of the deleted pool is left", map[string]bool{"new": true})

	w.must(env.Client.Get(t.Context(), client.ObjectKeyFromObject(&machines[0]), &machines[0]))
	machines[0].Finalizers = nil
	w.must(env.Client.Update(t.Context(), &machines[0]))
	w.reconcilePool()
	requireSecrets("no machine is left", nil)
}
