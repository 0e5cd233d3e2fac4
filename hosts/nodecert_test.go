// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hosts_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/hosts/nodecert"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/kubeproc"
)

// The digest of a cluster changes with its server, its CA and how the server is verified, and with nothing else. A later
// release computes the same digest, because all hosts would get another credential otherwise.
func TestDigestOfCluster(t *testing.T) {
	t.Parallel()

	const kubeconfig = `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://10.0.0.1:6443", certificate-authority-data: Q0E=, tls-server-name: api}}]
users: [{name: u, user: {token: t}}]
`

	for name, tt := range map[string]struct {
		from, to string
		isSame   bool
	}{
		"the same":          {"", "", true},
		"another token":     {"token: t", "token: t2", true},
		"another namespace": {"user: u}", "user: u, namespace: some}", true},
		"another order":     {"kind: Config\n", "preferences: {}\nkind: Config\n", true},
		"another server":    {"10.0.0.1", "10.0.0.2", false},
		"another CA":        {"Q0E=", "Q0Ey", false},
		"another name":      {"tls-server-name: api", "tls-server-name: other", false},
		"no verification":   {"certificate-authority-data: Q0E=", "insecure-skip-tls-verify: true", false},
	} {
		const want = "f156b7248d885543a352f9003fb22bea6985dda8c56899fb80e9941d64f12e79"

		got, err := credential.DigestOfCluster([]byte(strings.Replace(kubeconfig, tt.from, tt.to, 1)))
		if err != nil || (got == want) != tt.isSame {
			t.Errorf("%s: digest %s: %v", name, got, err)
		}
	}
}

// A certificate is pushed to a host only if it is for the generated key and for the host's Node.
// The kubeconfig with it contains no other credential of the operator. The simulated cluster
// returns wrong certificates, which a real API server does not.
func TestForeignCertificatesAreRejected(t *testing.T) {
	t.Parallel()

	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	for name, tt := range map[string]struct {
		kind, common string
		key          any
		wantText     string
	}{
		"as requested":   {"CERTIFICATE", "system:node:rack-1", nil, ""},
		"another Node":   {"CERTIFICATE", "system:node:rack-2", nil, "another name"},
		"another key":    {"CERTIFICATE", "system:node:rack-1", &other.PublicKey, "another key"},
		"no certificate": {"PRIVATE KEY", "system:node:rack-1", nil, "not a PEM certificate"},
	} {
		w, url, err := advance(t, func(object *certificatesv1.CertificateSigningRequest) {
			object.Status.Certificate = signCertificate(t, object.Spec.Request, other, tt.kind, tt.common, tt.key)
		})

		switch {
		case tt.wantText != "" && (err == nil || !strings.Contains(err.Error(), tt.wantText) || w.Credential != nil):
			t.Errorf("%s: %v, issued %v; want an error with %q", name, err, w.Credential, tt.wantText)
		case tt.wantText == "" && (err != nil || strings.Contains(w.Credential.Kubeconfig.Reveal(), "s3cr3t") ||
			!strings.Contains(w.Credential.Kubeconfig.Reveal(), url)):
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRefusedRequest checks that the error has the reason for which the cluster has refused a request.
func TestRefusedRequest(t *testing.T) {
	t.Parallel()

	_, _, err := advance(t, func(object *certificatesv1.CertificateSigningRequest) {
		object.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
			Type: certificatesv1.CertificateDenied, Status: corev1.ConditionTrue, Reason: "ByHand", Message: "the rack is closed",
		}}
	})
	if errclass.ReasonOf(err, "") != nodecert.ReasonRefused || !strings.Contains(err.Error(), "(ByHand): the rack is closed") {
		t.Errorf("want the reason %s with the cluster's reason, got %v", nodecert.ReasonRefused, err)
	}
}

// advance requests a credential from a simulated cluster that answers each call with the object as answer changes it. It
// returns the URL of the cluster as well.
func advance(t *testing.T, answer func(*certificatesv1.CertificateSigningRequest)) (*nodecert.PendingCredential, string, error) {
	t.Helper()

	cluster := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		object := &certificatesv1.CertificateSigningRequest{}
		body, _ := io.ReadAll(r.Body)

		if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, object); err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)

			return
		}

		object.APIVersion, object.Kind = "certificates.k8s.io/v1", "CertificateSigningRequest"
		answer(object)

		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object)
	}))
	t.Cleanup(cluster.Close)

	kubeconfig, err := kubeproc.Kubeconfig(&rest.Config{Host: cluster.URL, BearerToken: "s3cr3t"})
	if err != nil {
		t.Fatal(err)
	}

	w, err := nodecert.New("rack-1", time.Now())
	if err != nil {
		t.Fatal(err)
	}

	err = w.Advance(t.Context(), kubeconfig, time.Hour, time.Now())

	return w, cluster.URL, err
}

// signCertificate signs a certificate for a request, with the given key and common name. If key is
// nil, it uses the key of the request.
func signCertificate(t *testing.T, request []byte, by *ecdsa.PrivateKey, kind, common string, key any) []byte {
	t.Helper()

	block, _ := pem.Decode(request)

	parsed, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		t.Error(err)

		return nil
	}

	if key == nil {
		key = parsed.PublicKey
	}

	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: common}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
	}, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}}, key, by)
	if err != nil {
		t.Error(err)
	}

	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}
