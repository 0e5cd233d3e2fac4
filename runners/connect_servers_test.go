// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners_test

import (
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/connect"
)

const kubeconfigText = `{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c}}],
clusters: [{name: c, cluster: {server: "https://hypervisor.example.com"}}]}`

var errConnected = errors.New("connected")

// A hypervisor's credential goes to the servers that its Secret allows: without a list to the
// one that is named beside it, or in the kubeconfig itself.
func TestHypervisorsCredentialsNameTheirServers(t *testing.T) {
	t.Parallel()

	ref := v1alpha1.SecretKeySelector{Name: "s", Key: "value"}
	source := &v1alpha1.SecretValueSource{SecretKeyRef: ref}
	endpoint := func(c v1alpha1.HypervisorCredentials) v1alpha1.HypervisorClusterSpec {
		return v1alpha1.HypervisorClusterSpec{Provider: "p", Endpoint: "https://hypervisor.example.com/api", Credentials: c}
	}

	for name, spec := range map[string]v1alpha1.HypervisorClusterSpec{
		"token":              endpoint(v1alpha1.HypervisorCredentials{TokenID: source, TokenSecret: source}),
		"password":           endpoint(v1alpha1.HypervisorCredentials{Username: source, Password: source}),
		"client certificate": endpoint(v1alpha1.HypervisorCredentials{ClientCert: source, ClientKey: source}),
		"kubeconfig":         {Provider: "p", KubeVirt: &v1alpha1.KubeVirtCluster{KubeconfigSecretRef: &ref}},
	} {
		for list, allowed := range map[string]bool{
			"none": true, "hypervisor.example.com": true, "other.example.com, hypervisor.example.com:443": true,
			"other.example.com": false, "hypervisor.example.com:8443": false, "": false,
		} {
			secret := &corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "s"}, Data: map[string][]byte{"value": []byte(kubeconfigText)},
			}
			if list != "none" {
				secret.Annotations = map[string]string{v1alpha1.AnnotationAllowedServers: list}
			}

			clusters := &connect.Clusters{
				Secrets: &connect.Secrets{Reader: fake.NewClientBuilder().WithObjects(secret).Build(), OperatorNamespace: "system"},
				Factories: map[string]hypervisor.Factory{"p": func(hypervisor.Config, hypervisor.Options) (hypervisor.Connection, error) {
					return nil, errConnected
				}},
			}

			_, err := clusters.Ensure(t.Context(), &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Spec: spec})
			if refused := errclass.Reason(err, "") == credential.ReasonServerNotAllowed; refused == allowed {
				t.Errorf("%s, list %q: error %v, want allowed %v", name, list, err, allowed)
			}

			if !allowed && errors.Is(err, errConnected) {
				t.Errorf("%s, list %q: it was connected to", name, list)
			}
		}
	}
}
