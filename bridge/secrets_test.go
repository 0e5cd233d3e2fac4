// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/bridge/hypershift"
)

// If a namespace is deleted with its bridge, the Secrets of the HostedCluster stay until the HostedCluster is deleted.
// Then the namespace is gone.
func TestNamespaceWithBridgeIsDeleted(t *testing.T) {
	t.Parallel()

	w := newFixture(t)
	b := w.createReadyBridge("b")

	cluster := &unstructured.Unstructured{}
	cluster.SetGroupVersionKind(hypershift.HostedClusterKind())

	key := client.ObjectKeyFromObject(b)
	w.must(env.Client.Get(t.Context(), key, cluster))

	// Another program keeps the HostedCluster for a while.
	finalizers := cluster.GetFinalizers()
	cluster.SetFinalizers(append(finalizers, "test.hyperfleet.io/kept"))
	w.must(env.Client.Update(t.Context(), cluster))

	secrets := []string{
		b.Spec.PullSecretRef.Name, b.Spec.SSHKeySecretRef.Name,
		hypershift.SSHKeySecretName(b.Name), hypershift.EncryptionKeySecretName(b.Name),
	}
	countSecrets := func(deletingOnly bool) int {
		count := 0

		for _, name := range secrets {
			secret := &corev1.Secret{}

			err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: w.namespace, Name: name}, secret)
			if err == nil && (!deletingOnly || secret.DeletionTimestamp != nil) {
				count++
			}
		}

		return count
	}

	w.must(env.Client.Delete(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: w.namespace}}))
	w.eventually("all Secrets are being deleted, and stay", func() bool { return countSecrets(true) == len(secrets) })
	w.eventually("only the other program keeps the HostedCluster", func() bool {
		return env.Client.Get(t.Context(), key, cluster) == nil && cluster.GetDeletionTimestamp() != nil && len(cluster.GetFinalizers()) == 1
	})

	if got := countSecrets(false); got != len(secrets) {
		t.Errorf("%d of %d Secrets of an existing HostedCluster exist", got, len(secrets))
	}

	cluster.SetFinalizers(nil)
	w.must(env.Client.Update(t.Context(), cluster))
	w.eventually("the namespace is gone", func() bool {
		return apierrors.IsNotFound(env.Client.Get(t.Context(), client.ObjectKey{Name: w.namespace}, &corev1.Namespace{}))
	})
}
