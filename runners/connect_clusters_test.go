// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// What a Secret's owner allows no more is not used on: the connection ends.
func TestConnectionsEndWithTheirPermission(t *testing.T) {
	t.Parallel()

	for reason, annotation := range map[string]string{
		credential.ReasonServerNotAllowed: v1alpha1.AnnotationAllowedServers,
		"SecretNotAllowed":                v1alpha1.AnnotationAllowedNamespaces,
	} {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "secrets", Annotations: map[string]string{
				v1alpha1.AnnotationAllowedServers: "pve.example:8006", v1alpha1.AnnotationAllowedNamespaces: "system",
			}},
			Data: map[string][]byte{"id": []byte("id"), "secret": []byte("s3cret")},
		}
		api := fake.NewClientBuilder().WithObjects(secret).Build()
		hv := &lab{}
		clusters, cluster := hv.clusters(api, "system"), clusterOf("c")
		cluster.Spec.Credentials.TokenID.SecretKeyRef.Namespace = "team"
		cluster.Spec.Credentials.TokenSecret.SecretKeyRef.Namespace = "team"

		if _, err := clusters.Ensure(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}

		secret.Annotations[annotation] = "another.example.com"
		if err := api.Update(t.Context(), secret); err != nil {
			t.Fatal(err)
		}

		if _, err := clusters.Ensure(t.Context(), cluster); errclass.Reason(err, "") != reason {
			t.Errorf("a Secret whose %s was narrowed: error %v, want reason %s", annotation, err, reason)
		}

		if _, there := clusters.Get("c"); there || hv.open != 0 {
			t.Errorf("a Secret whose %s was narrowed: still to be had: %t, open connections: %d", annotation, there, hv.open)
		}
	}
}

// Ten thousand clusters that came and went leave nothing behind.
func TestConnectionsEndWithTheirClusters(t *testing.T) { //nolint:paralleltest // it looks at the heap
	hv := &lab{}
	clusters := hv.clusters(fake.NewClientBuilder().WithObjects(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "secrets"},
		Data:       map[string][]byte{"id": []byte("id"), "secret": []byte("s3cret")},
	}).Build(), "system")

	heap.Ends(t, "connections", func(number int) {
		cluster := clusterOf(fmt.Sprintf("c%d", number))
		if _, err := clusters.Ensure(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}

		clusters.Forget(cluster.Name)

		if _, there := clusters.Get(cluster.Name); there {
			t.Fatal("a cluster that is gone is connected to")
		}
	})

	if hv.open != 0 {
		t.Errorf("%d connections are open", hv.open)
	}
}
