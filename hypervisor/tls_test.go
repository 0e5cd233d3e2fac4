// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

func TestTLSConfig(t *testing.T) {
	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()

	own := server.Certificate()
	shown := hypervisor.FormatFingerprint(sha256.Sum256(own.Raw))
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: own.Raw})

	cases := []struct {
		name    string
		spec    *v1alpha1.HypervisorTLS
		trusted bool
	}{
		{"an unknown authority", nil, false},
		{"an empty spec", &v1alpha1.HypervisorTLS{}, false},
		{"its bundle", &v1alpha1.HypervisorTLS{CABundle: bundle}, true},
		{"its fingerprint", &v1alpha1.HypervisorTLS{Fingerprint: shown}, true},
		{"its fingerprint in lower case", &v1alpha1.HypervisorTLS{Fingerprint: strings.ToLower(shown)}, true},
		{"another fingerprint", &v1alpha1.HypervisorTLS{Fingerprint: strings.Repeat("00:", 31) + "00"}, false},
		{"insecureSkipVerify", &v1alpha1.HypervisorTLS{InsecureSkipVerify: true}, true},
		{"a fingerprint overrides insecureSkipVerify", &v1alpha1.HypervisorTLS{
			Fingerprint: strings.Repeat("00:", 31) + "00", InsecureSkipVerify: true,
		}, false},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			config, err := hypervisor.NewTLSConfig(c.spec, nil, nil)
			if err != nil {
				t.Fatal(err)
			}

			conn, err := tls.Dial("tcp", server.Listener.Addr().String(), config)
			if err == nil {
				_ = conn.Close()
			}

			if (err == nil) != c.trusted {
				t.Errorf("connected: %v", err)
			}

			if pin, ok := errors.AsType[*hypervisor.FingerprintError](err); ok && pin.Got != shown {
				t.Errorf("got the fingerprint %s of the server", pin.Got)
			}
		})
	}
}

func TestTLSConfigErrors(t *testing.T) {
	cases := []struct {
		name      string
		spec      *v1alpha1.HypervisorTLS
		cert, key string
		wantText  string
	}{
		{"a bundle without certificates", &v1alpha1.HypervisorTLS{CABundle: []byte("x")}, "", "", "tls.caBundle"},
		{"a short fingerprint", &v1alpha1.HypervisorTLS{Fingerprint: "AB:CD"}, "", "", "tls.fingerprint"},
		{"a fingerprint of other letters", &v1alpha1.HypervisorTLS{Fingerprint: "XY"}, "", "", "tls.fingerprint"},
		{"a certificate without its key", nil, "s3cr3t", "", "clientCert"},
		{"a key without its certificate", nil, "", "s3cr3t", "clientKey"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := hypervisor.NewTLSConfig(c.spec, []byte(c.cert), []byte(c.key))
			if err == nil || !strings.Contains(err.Error(), c.wantText) || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestKinds(t *testing.T) {
	cause := errors.New("cause")
	err := errors.Join(errors.New("other"), &hypervisor.Error{Kind: hypervisor.Busy, Message: "locked", Err: cause})

	if hypervisor.KindOf(err) != hypervisor.Busy || !hypervisor.Is(err, hypervisor.Busy) || !errors.Is(err, cause) {
		t.Errorf("kind %q", hypervisor.KindOf(err))
	}

	if hypervisor.KindOf(cause) != "" || hypervisor.Is(nil, "") {
		t.Error("KindOf and Is must report no kind for an error without one")
	}
}
