// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

const (
	worker  = "dpu-0001"
	machine = "openshift-machine-config-operator"
)

// TestWorkersJoin checks that a DPU's worker joins a hosted cluster with its own control plane: its certificate
// signing request is approved, so that the certificate is signed. bridge/requests_test.go checks which requests
// are not approved.
func TestWorkersJoin(t *testing.T) {
	hosted := kube.Start(t, kube.WithControllerManager())
	w := newFixture(t, hosted.Config)
	w.start(env.ServiceAccount(t, system, account))

	bridge := w.createSample("dpfhcpbridge-development.yaml")
	w.waitForPhase(bridge, v1alpha1.PhaseReady)

	dpus := types.NamespacedName{Namespace: w.dpf, Name: bridge.Spec.DPUClusterRef.Name}
	if err := w.sim.SetDPU(t.Context(), dpus, worker, "DPU Cluster Config"); err != nil {
		t.Fatal(err)
	}

	request := createRequest(t, hosted)
	w.eventually("the certificate is signed for "+request.Name, func() bool {
		if err := hosted.Client.Get(t.Context(), client.ObjectKeyFromObject(request), request); err != nil {
			t.Fatal(err)
		}

		return len(request.Status.Certificate) > 0
	})
	w.logf("worker %s: the certificate is approved and signed", worker)
	w.deleteAndWait(bridge)
}

// createRequest creates the worker's certificate signing request, with the account and permissions that OpenShift
// gives workers.
func createRequest(t *testing.T, hosted *kube.Env) *certificatesv1.CertificateSigningRequest {
	t.Helper()

	account := hosted.ServiceAccount(t, machine, "node-bootstrapper")
	hosted.Create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "workers-bootstrap"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:node-bootstrapper"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: machine, Name: "node-bootstrapper"}},
	})

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{Organization: []string{"system:nodes"}, CommonName: "system:node:" + worker},
	}, key)
	if err != nil {
		t.Fatal(err)
	}

	requester, err := client.New(account, client.Options{Scheme: hosted.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}
	if err := requester.Create(t.Context(), request); err != nil {
		t.Fatal(err)
	}

	return request
}
