// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"crypto/sha256"
	"crypto/subtle"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/inputbound"
)

// FingerprintError says that a server showed another certificate than the pinned one.
type FingerprintError struct {
	// Want and Got are SHA-256 fingerprints as Fingerprint writes them.
	Want, Got string
}

// Error names both fingerprints.
func (e *FingerprintError) Error() string {
	return fmt.Sprintf("verify certificate: its fingerprint is %s, pinned is %s", e.Got, e.Want)
}

// Fingerprint writes a SHA-256 as Proxmox shows it: 32 pairs of upper case hexadecimal
// digits with colons between.
func Fingerprint(sum [sha256.Size]byte) string {
	pairs := make([]string, len(sum))
	for i, b := range sum {
		pairs[i] = hex.EncodeToString([]byte{b})
	}

	return strings.ToUpper(strings.Join(pairs, ":"))
}

// TLSConfig makes the verification of a cluster's server certificate, with the client
// certificate in PEM if there is one. A nil spec trusts the system's authorities.
func TLSConfig(spec *v1alpha1.HypervisorTLS, certPEM, keyPEM []byte) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}

	if len(certPEM) > 0 || len(keyPEM) > 0 {
		if err := inputbound.Key(keyPEM); err != nil {
			return nil, fmt.Errorf("read client certificate: clientKey is %w", err)
		}

		cert, err := tls.X509KeyPair(certPEM, keyPEM)
		if err != nil {
			// The cause may quote the input; it stays out.
			return nil, errors.New("read client certificate: clientCert and clientKey are not a pair in PEM")
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
			return nil, fmt.Errorf("read tls.fingerprint: %w", err)
		}

		pin(config, want)
	case len(spec.CABundle) > 0:
		var err error
		if config.RootCAs, err = inputbound.Authorities(spec.CABundle, nil); err != nil {
			return nil, fmt.Errorf("read tls.caBundle: %w", err)
		}
	case spec.InsecureSkipVerify:
		config.InsecureSkipVerify = true
	}

	return config, nil
}

// pin replaces the verification by a comparison of the server's own certificate.
func pin(config *tls.Config, want [sha256.Size]byte) {
	// The usual verification is replaced, not left out: VerifyConnection runs for each
	// connection, resumed ones too.
	config.InsecureSkipVerify = true
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("verify certificate: the server showed none")
		}

		got := sha256.Sum256(state.PeerCertificates[0].Raw)
		if subtle.ConstantTimeCompare(got[:], want[:]) == 1 {
			return nil
		}

		return &FingerprintError{Want: Fingerprint(want), Got: Fingerprint(got)}
	}
}

func parseFingerprint(s string) ([sha256.Size]byte, error) {
	var sum [sha256.Size]byte

	raw, err := hex.DecodeString(strings.ReplaceAll(s, ":", ""))
	if err != nil || len(raw) != len(sum) {
		return sum, errors.New("want a SHA-256, 32 pairs of hexadecimal digits with colons between")
	}

	copy(sum[:], raw)

	return sum, nil
}
