// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
)

// FingerprintError is the error for a server that presents another certificate than the pinned
// one.
type FingerprintError struct {
	// Want and Got are SHA-256 fingerprints in the format of FormatFingerprint.
	Want, Got string
}

// Error returns a text with both fingerprints.
func (e *FingerprintError) Error() string {
	return fmt.Sprintf("verify certificate: the fingerprint is %s, but the pinned fingerprint is %s", e.Got, e.Want)
}

// IsUntrusted reports whether a connection failed because the server's certificate is not trusted.
func IsUntrusted(err error) bool {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		verify    *tls.CertificateVerificationError
		pinned    *FingerprintError
	)

	return errors.As(err, &authority) || errors.As(err, &hostname) || errors.As(err, &invalid) || errors.As(err, &verify) ||
		errors.As(err, &pinned)
}

// FormatFingerprint formats a SHA-256 digest as Proxmox VE does: as 32 pairs of upper case
// hexadecimal digits that colons separate.
func FormatFingerprint(sum [sha256.Size]byte) string {
	pairs := make([]string, len(sum))
	for i, b := range sum {
		pairs[i] = hex.EncodeToString([]byte{b})
	}

	return strings.ToUpper(strings.Join(pairs, ":"))
}

// NewTLSConfig returns the TLS configuration for the connection to a cluster. certPEM and keyPEM
// are the client certificate and its private key. Both are empty if the cluster has none. With a
// nil spec, the configuration trusts the system's certificate authorities. A fingerprint in the
// spec takes precedence over a CA bundle, and both take precedence over insecureSkipVerify.
func NewTLSConfig(spec *v1alpha1.HypervisorTLS, certPEM, keyPEM []byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}

	if len(certPEM) > 0 || len(keyPEM) > 0 {
		if err := bounds.CheckPrivateKey(keyPEM); err != nil {
			return nil, fmt.Errorf("parse client certificate: clientKey is %w", err)
		}

		cert, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			// The cause can quote the input, so the error does not wrap it.
			return nil, errors.New("parse client certificate: clientCert and clientKey are not a certificate and its private key in PEM")
		}

		config.Certificates = []tls.Certificate{cert}
	}

	if spec == nil {
		return config, nil
	}

	switch {
	case spec.Fingerprint != "":
		want, err := parseFingerprint(spec.Fingerprint)
		if err != nil {
			return nil, fmt.Errorf("parse tls.fingerprint: %w", err)
		}

		pinCertificate(config, want)
	case len(spec.CABundle) > 0:
		var err error
		if config.RootCAs, err = bounds.ParseCABundle(spec.CABundle, nil); err != nil {
			return nil, fmt.Errorf("parse tls.caBundle: %w", err)
		}
	case spec.InsecureSkipVerify:
		config.InsecureSkipVerify = true
	}

	return config, nil
}

// pinCertificate replaces the verification of the certificate chain. The connection then accepts
// only a server certificate with the fingerprint.
func pinCertificate(config *tls.Config, want [sha256.Size]byte) {
	// InsecureSkipVerify turns off only the verification of the chain. VerifyConnection still
	// runs for each connection, also for a resumed one.
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("verify certificate: the server presented no certificate")
		}

		got := sha256.Sum256(state.PeerCertificates[0].Raw)
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			return nil
		}

		return &FingerprintError{Want: FormatFingerprint(want), Got: FormatFingerprint(got)}
	}
}

func parseFingerprint(s string) ([sha256.Size]byte, error) {
	var sum [sha256.Size]byte

	raw, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
	if err != nil || len(raw) != len(sum) {
		return sum, errors.New("a fingerprint is a SHA-256 digest: 32 pairs of hexadecimal digits that colons separate")
	}

	copy(sum[:], raw)

	return sum, nil
}
