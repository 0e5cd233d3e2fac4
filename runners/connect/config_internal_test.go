// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
	"github.com/hyperfleet/hyperfleet/workload"
)

// The connection to a Proxmox VE has each setting of its cluster, and the credentials of the Secrets that the cluster
// names by name, key and namespace.
func TestConfigOfACluster(t *testing.T) {
	t.Parallel()

	source := func(key string) *v1alpha1.SecretValueSource {
		return &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Namespace: "team", Name: "pve", Key: key}}
	}
	clusters := &Clusters{Secrets: &Secrets{
		OperatorNamespace: "system", Reader: fake.NewClientBuilder().WithObjects(
			&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{
					Namespace: "team", Name: "pve", Annotations: map[string]string{v1alpha1.AnnotationAllowedNamespaces: "system"},
				},
				Data: map[string][]byte{
					"id": []byte("ci@pve!fleet"), "secret": []byte("s3cret"), "user": []byte("ci@pve"), "word": []byte("passw0rd"),
				},
			},
			&corev1.Secret{ // a Secret of the same name in the operator's namespace is not used
				ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: "pve"},
				Data:       map[string][]byte{"id": []byte("x"), "secret": []byte("x"), "user": []byte("x"), "word": []byte("x")},
			},
		).Build(),
	}}

	for name, tc := range map[string]struct {
		from v1alpha1.HypervisorCredentials
		want hypervisor.Credentials
	}{
		"API token": {
			v1alpha1.HypervisorCredentials{TokenID: source("id"), TokenSecret: source("secret")},
			hypervisor.Credentials{TokenID: "ci@pve!fleet", TokenSecret: "s3cret"},
		},
		"password": {
			v1alpha1.HypervisorCredentials{Username: source("user"), Password: source("word")},
			hypervisor.Credentials{Username: "ci@pve", Password: "passw0rd"},
		},
	} {
		cluster := &v1alpha1.HypervisorCluster{ObjectMeta: metav1.ObjectMeta{Name: "lab"}, Spec: v1alpha1.HypervisorClusterSpec{
			Provider: v1alpha1.ProviderProxmox, Endpoint: "https://pve.example:8006/api2/json", Credentials: tc.from,
			Nodes: []string{"pve1", "pve2"}, DefaultStorage: "ceph", DefaultNetwork: "vmbr1", Tags: map[string]string{"site": "berlin"},
		}}

		secrets, err := clusters.readSecrets(t.Context(), &cluster.Spec)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}

		got, err := newClusterConfig(cluster, secrets)
		want := hypervisor.Config{
			Name: "lab", Endpoint: "https://pve.example:8006/api2/json", Credentials: tc.want,
			Nodes: []string{"pve1", "pve2"}, DefaultStorage: "ceph", DefaultNetwork: "vmbr1", Tags: map[string]string{"site": "berlin"},
		}

		diff := cmp.Diff(want, got, cmpopts.IgnoreFields(hypervisor.Config{}, "TLS"), cmpopts.EquateEmpty())
		if err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

// A provider gets the timeout of its template, and 30 seconds if the template has no httpClient.
func TestTimeoutOfAProvider(t *testing.T) {
	t.Parallel()

	workloads := &Workloads{Network: http.DefaultTransport}

	for timeout, want := range map[time.Duration]time.Duration{7 * time.Second: 7 * time.Second, 0: 30 * time.Second} {
		config, err := workloads.newConfig(t.Context(), &v1alpha1.HypervisorMachineTemplate{}, workload.RunnerSpec{Timeout: timeout})
		if err != nil || config.Runner.Timeout != want {
			t.Errorf("timeout %s of a template became %s, %v, want %s", timeout, config.Runner.Timeout, err, want)
		}
	}
}
