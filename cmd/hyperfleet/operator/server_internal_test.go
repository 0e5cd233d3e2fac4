// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

// A certificate that is renewed is shown without a restart.
func TestCertificateIsReadAgain(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	s := &server{
		cfg: config.Webhooks{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")},
		log: slog.New(slog.DiscardHandler),
	}

	if _, err := s.certificate(t.Context()); err == nil {
		t.Error("it starts without a certificate")
	}

	certify(t, s.cfg, 1)

	shown, err := s.certificate(t.Context())
	if err != nil {
		t.Fatal(err)
	}

	serial := func() int64 {
		pair, err := shown.GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}

		certificate, err := x509.ParseCertificate(pair.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}

		return certificate.SerialNumber.Int64()
	}

	certify(t, s.cfg, 2)

	for deadline := time.Now().Add(time.Minute); serial() != 2; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the old certificate is shown still")
		}
	}
}

// certify writes a certificate with a serial number, and its key.
func certify(t *testing.T, to config.Webhooks, serial int64) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(time.Hour)}

	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	for file, block := range map[string]*pem.Block{
		to.KeyFile: {Type: "PRIVATE KEY", Bytes: private}, to.CertFile: {Type: "CERTIFICATE", Bytes: certificate},
	} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
