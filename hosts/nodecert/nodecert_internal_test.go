// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package nodecert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

const config = `{apiVersion: v1, kind: Config, current-context: a, contexts: [{name: a, context: {cluster: a, user: a}}],
	clusters: [{name: a, cluster: {server: "https://192.0.2.1:6443"}}], users: [{name: a, user: {token: s3cr3t}}]}`

// What a cluster says it has signed is brought to a host only if it is the host's: of the key that
// was made, and of its Node. Nothing else of the operator's kubeconfig comes with it.
func TestCertificatesOfOthersAreNotTaken(t *testing.T) {
	t.Parallel()

	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	for name, tt := range map[string]struct {
		kind, common string
		key          any
		says         string
	}{
		"as asked for":   {"CERTIFICATE", "system:node:rack-1", nil, ""},
		"another Node":   {"CERTIFICATE", "system:node:rack-2", nil, "another name"},
		"another key":    {"CERTIFICATE", "system:node:rack-1", &other.PublicKey, "another key"},
		"no certificate": {"PRIVATE KEY", "system:node:rack-1", nil, "no certificate in PEM"},
	} {
		w, err := New("rack-1", time.Now())
		if err != nil {
			t.Fatal(err)
		}

		block, _ := pem.Decode(w.request)
		request, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}

		if tt.key == nil {
			tt.key = request.PublicKey
		}

		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
			SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: tt.common}, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
		}, &x509.Certificate{Subject: pkix.Name{CommonName: "ca"}}, tt.key, other)
		if err != nil {
			t.Fatal(err)
		}

		err = w.take([]byte(config), pem.EncodeToMemory(&pem.Block{Type: tt.kind, Bytes: der}))

		switch {
		case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says) || w.Issued != nil):
			t.Errorf("%s: %v, issued %v; want a refusal that says %q", name, err, w.Issued, tt.says)
		case tt.says == "" && (err != nil || strings.Contains(w.Issued.Kubeconfig.Reveal(), "s3cr3t") ||
			!strings.Contains(w.Issued.Kubeconfig.Reveal(), "https://192.0.2.1:6443")):
			t.Errorf("%s: %v", name, err)
		}
	}
}
