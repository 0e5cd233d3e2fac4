// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// lab is a connection that notes its end.
type lab struct {
	hypervisor.Connection

	open *int
}

func (l lab) Close() { *l.open-- }

func labClusters(secrets client.Reader) (clusters *Clusters, open *int) {
	open = new(int)

	return &Clusters{
		Secrets: &Secrets{Reader: secrets, OperatorNamespace: "system"},
		Factories: map[string]hypervisor.Factory{"p": func(hypervisor.Config, hypervisor.Options) (hypervisor.Connection, error) {
			*open++

			return lab{open: open}, nil
		}},
	}, open
}

func labCluster(name string, secret v1alpha1.SecretKeySelector) *v1alpha1.HypervisorCluster {
	return &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.HypervisorClusterSpec{
		Provider: "p", Endpoint: "https://hypervisor.example.com/api",
		Credentials: v1alpha1.HypervisorCredentials{TokenSecret: &v1alpha1.SecretValueSource{SecretKeyRef: secret}},
	}}
}

// What a Secret's owner allows no more is not used on: the connection ends.
func TestConnectionsEndWithTheirPermission(t *testing.T) {
	t.Parallel()

	for reason, annotation := range map[string]string{
		credential.ReasonServerNotAllowed: v1alpha1.AnnotationAllowedServers,
		reasonSecretNotAllowed:            v1alpha1.AnnotationAllowedNamespaces,
	} {
		secret := &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "s", Annotations: map[string]string{
				v1alpha1.AnnotationAllowedServers: "hypervisor.example.com", v1alpha1.AnnotationAllowedNamespaces: "system",
			}},
			Data: map[string][]byte{"value": []byte("s3cret")},
		}
		api := fake.NewClientBuilder().WithObjects(secret).Build()
		clusters, open := labClusters(api)
		cluster := labCluster("c", v1alpha1.SecretKeySelector{Namespace: "team", Name: "s", Key: "value"})

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

		if _, there := clusters.Get("c"); there || *open != 0 {
			t.Errorf("a Secret whose %s was narrowed: still to be had: %t, open connections: %d", annotation, there, *open)
		}
	}
}

// Ten thousand clusters that came and went leave nothing behind.
func TestConnectionsEndWithTheirClusters(t *testing.T) { //nolint:paralleltest // it looks at the heap
	clusters, open := labClusters(fake.NewClientBuilder().WithObjects(&corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "s"}, Data: map[string][]byte{"value": []byte("s3cret")},
	}).Build())

	heap.Ends(t, "connections", func(number int) {
		cluster := labCluster(fmt.Sprintf("c%d", number), v1alpha1.SecretKeySelector{Name: "s", Key: "value"})
		if _, err := clusters.Ensure(t.Context(), cluster); err != nil {
			t.Fatal(err)
		}

		clusters.Forget(cluster.Name)
	})

	if *open != 0 || len(clusters.entries) > 0 {
		t.Errorf("%d connections are open, %d kept", *open, len(clusters.entries))
	}
}
