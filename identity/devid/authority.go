// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"bytes"
	"crypto"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"os"
	"time"

	"k8s.io/utils/clock"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
)

const (
	// MaxLifetime is the maximum lifetime of a certificate, and the lifetime for a machine without
	// a limit of its own.
	MaxLifetime = 24 * time.Hour
	// clockSkew is the time by which a certificate is valid before the request, so that relying
	// parties with a slow clock accept it.
	clockSkew = 5 * time.Minute
	// serialBytes is the length of a serial number. It is within the limit of RFC 5280, 4.1.2.2.
	serialBytes = 16
)

// CommonName returns the common name in the subject of a machine's certificates. SPIRE derives from it
// the selector tpm_devid:subject:cn:COMMON-NAME of the machine's agent.
func CommonName(id identity.ID) string { return id.UID }

// Authority issues certificates for keys. It is immutable and safe for concurrent use.
type Authority struct {
	issuer *x509.Certificate
	// chain is the issuer's certificate and the certificates above it, without a root. Relying
	// parties have the root.
	chain []*x509.Certificate
	key   crypto.Signer
}

// Load reads the configured authority from its files. Callers load it each time they need it, so the
// operator uses a renewed certificate without a restart.
func Load(settings config.DevID, clk clock.PassiveClock) (*Authority, error) {
	certificate, err := os.ReadFile(settings.CertFile)
	if err != nil {
		return nil, fmt.Errorf("read identity.devID.certFile: %w", err)
	}

	key, err := os.ReadFile(settings.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read identity.devID.keyFile: %w", err)
	}

	authority, err := New(certificate, key, clk.Now())
	if err != nil {
		return nil, fmt.Errorf("load device identity authority %s: %w", settings.CertFile, err)
	}

	return authority, nil
}

// New returns the authority with the certificate and the private key, both in PEM. If the certificate is
// not a root, the certificates above it follow it. New returns an error if the authority cannot issue
// certificates at the time now.
func New(certificate, key []byte, now time.Time) (*Authority, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		// Errors of crypto/tls do not contain bytes of the key.
		return nil, fmt.Errorf("parse certificate and private key: %w", err)
	}

	out := &Authority{issuer: pair.Leaf}

	var ok bool
	if out.key, ok = pair.PrivateKey.(crypto.Signer); !ok {
		return nil, errors.New("the private key cannot sign: use an RSA, ECDSA or Ed25519 key")
	}

	if err := out.validate(now); err != nil {
		return nil, err
	}

	for _, der := range pair.Certificate {
		parsed, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("parse certificate: %w", err)
		}

		if !bytes.Equal(parsed.RawIssuer, parsed.RawSubject) {
			out.chain = append(out.chain, parsed)
		}
	}

	return out, nil
}

// validate returns an error if the authority cannot issue certificates at the time now.
func (a *Authority) validate(now time.Time) error {
	switch c := a.issuer; {
	case !c.BasicConstraintsValid || !c.IsCA:
		return fmt.Errorf("certificate of %q is not a CA certificate: issue it with basicConstraints CA:TRUE", c.Subject)
	case c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("certificate of %q does not permit signing certificates: issue it with keyUsage keyCertSign", c.Subject)
	case now.Before(c.NotBefore):
		return fmt.Errorf("certificate of %q is not valid before %s: correct the clock", c.Subject, c.NotBefore.Format(time.RFC3339))
	case !now.Before(c.NotAfter):
		return fmt.Errorf("certificate of %q expired at %s: renew it", c.Subject, c.NotAfter.Format(time.RFC3339))
	default:
		return nil
	}
}

// Request is the request for the certificate of one machine.
type Request struct {
	Machine identity.ID
	// PublicArea is the TPM2B_PUBLIC of the machine's key.
	PublicArea []byte
	// RequestedAt is the time at which the machine first requested the certificate. Lifetime starts
	// at that time. A Lifetime of 0 or of more than MaxLifetime means MaxLifetime.
	RequestedAt time.Time
	Lifetime    time.Duration
}

// Certificate is the certificate that a machine gets.
type Certificate struct {
	// Chain in DER without the root. The certificate of the key is the first one.
	Chain [][]byte
	// Serial is the serial number of the certificate of the key.
	Serial *big.Int
	// NotAfter is the time at which the certificate of the key expires.
	NotAfter time.Time
}

// Issue issues the certificate for a key. The certificate does not outlive the authority's own
// certificate. The same request always results in the same certificate as long as the authority is the
// same. If the key cannot be certified, the error wraps ErrKeyNotCertifiable.
func (a *Authority) Issue(request Request) (Certificate, error) {
	key, err := ParsePublic(request.PublicArea)
	if err != nil {
		return Certificate{}, err
	}

	lifetime := request.Lifetime
	if lifetime <= 0 || lifetime > MaxLifetime {
		lifetime = MaxLifetime
	}

	requestedAt := request.RequestedAt.UTC().Truncate(time.Second)
	notAfter := requestedAt.Add(lifetime)

	if notAfter.After(a.issuer.NotAfter) {
		notAfter = a.issuer.NotAfter
	}

	template := &x509.Certificate{
		SerialNumber: serialNumber(request),
		Subject:      pkix.Name{CommonName: CommonName(request.Machine)},
		NotBefore:    requestedAt.Add(-clockSkew),
		NotAfter:     notAfter,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		// The certificate has none of TCG's extended key usages, such as
		// tcg-cap-verifiedTPMResidency. The relying party has to verify that the TPM holds the key.
		BasicConstraintsValid: true,
	}

	// Without a source of randomness, ECDSA signatures are deterministic (RFC 6979). RSA and Ed25519
	// signatures always are. So one request results in one certificate. SPIRE derives the id of an
	// agent from its certificate, so one request also results in one agent.
	der, err := x509.CreateCertificate(nil, template, a.issuer, key, a.key)
	if err != nil {
		return Certificate{}, fmt.Errorf("sign certificate of machine %s: %w", request.Machine.Path(), err)
	}

	out := Certificate{Chain: [][]byte{der}, Serial: template.SerialNumber, NotAfter: notAfter}
	for _, certificate := range a.chain {
		out.Chain = append(out.Chain, certificate.Raw)
	}

	return out, nil
}

// serialNumber returns a serial number that is always the same for a machine and a key, and different for
// every other machine or key.
func serialNumber(request Request) *big.Int {
	sum := sha256.Sum256([]byte(request.Machine.UID + "\x00" + Fingerprint(request.PublicArea)))
	// The first byte makes the number positive and not zero.
	sum[0] = sum[0]&0x7f | 0x40

	return new(big.Int).SetBytes(sum[:serialBytes])
}
