// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package tpm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"path/filepath"
	"testing"
	"time"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

// Devices holds the files of a certificate authority for device identities.
type Devices = config.DevID

// NewDevID creates a certificate authority for device identities in files of the test, as in the operator's
// configuration. A SPIRE server needs its certificate file as devid_ca_path.
func NewDevID(t testing.TB) Devices {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "devices of the test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(48 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	dir := t.TempDir()
	out := Devices{CertFile: filepath.Join(dir, "tls.crt"), KeyFile: filepath.Join(dir, "tls.key")}

	for path, block := range map[string]*pem.Block{
		out.CertFile: {Type: "CERTIFICATE", Bytes: der}, out.KeyFile: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), ownerOnly); err != nil {
			t.Fatal(err)
		}
	}

	return out
}

// AttestorConfig returns the configuration of a SPIRE server's node attestor tpm_devid for
// spire.WithPlugin. The attestor accepts the TPMs of this authority and the device identities of devices.
// Create at least one TPM before the server starts, because the first TPM creates the bundle.
func (a *Authority) AttestorConfig(devices Devices) string {
	return fmt.Sprintf("NodeAttestor \"tpm_devid\" { plugin_data {\n\tdevid_ca_path = %q\n\tendorsement_ca_path = %q\n} }",
		devices.CertFile, a.Bundle)
}
