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
	// MaxLifetime is that of certificates for machines without a bound of their own.
	MaxLifetime = 24 * time.Hour
	// early is how much earlier than its making a certificate is valid, for the clocks of
	// those who check it.
	early = 5 * time.Minute
	// serialBytes keep a serial number within what is allowed (RFC 5280, 4.1.2.2).
	serialBytes = 16
)

// CommonName is that of the subject of a machine's certificates. SPIRE makes it the selector
// tpm_devid:subject:cn:COMMON-NAME of the machine's agent.
func CommonName(id identity.ID) string { return id.UID }

// Authority certifies keys. It is immutable, and safe for concurrent use.
type Authority struct {
	issuer *x509.Certificate
	// above are the issuer and who issued it, but for a root: who relies on certificates
	// has that.
	above []*x509.Certificate
	key   crypto.Signer
}

// Load reads the authority that the operator is configured with. It is made anew wherever it
// is needed, so that a renewed certificate is taken up without a restart.
func Load(settings config.DevID, at clock.PassiveClock) (*Authority, error) {
	certificate, err := os.ReadFile(settings.CertFile)
	if err != nil {
		return nil, fmt.Errorf("read identity.devID.certFile: %w", err)
	}

	key, err := os.ReadFile(settings.KeyFile)
	if err != nil {
		return nil, fmt.Errorf("read identity.devID.keyFile: %w", err)
	}

	authority, err := New(certificate, key, at.Now())
	if err != nil {
		return nil, fmt.Errorf("use device identity authority %s: %w", settings.CertFile, err)
	}

	return authority, nil
}

// New makes an authority of its certificate, with those above it where it is not a root, and
// its key, all in PEM.
func New(certificate, key []byte, now time.Time) (*Authority, error) {
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		// crypto/tls tells neither of the key's bytes.
		return nil, fmt.Errorf("read certificate and key: %w", err)
	}

	out := &Authority{issuer: pair.Leaf}

	var ok bool
	if out.key, ok = pair.PrivateKey.(crypto.Signer); !ok {
		return nil, errors.New("its key cannot sign")
	}

	if err := out.valid(now); err != nil {
		return nil, err
	}

	for _, der := range pair.Certificate {
		one, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}

		if !bytes.Equal(one.RawIssuer, one.RawSubject) {
			out.above = append(out.above, one)
		}
	}

	return out, nil
}

// valid says whether the authority may issue.
func (a *Authority) valid(now time.Time) error {
	switch c := a.issuer; {
	case !c.BasicConstraintsValid || !c.IsCA:
		return fmt.Errorf("certificate of %q is not a certificate authority's: make one with basicConstraints CA:TRUE", c.Subject)
	case c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0:
		return fmt.Errorf("certificate of %q may not sign certificates: make one with keyUsage keyCertSign", c.Subject)
	case now.Before(c.NotBefore):
		return fmt.Errorf("certificate of %q is not valid before %s: correct the clock", c.Subject, c.NotBefore.Format(time.RFC3339))
	case !now.Before(c.NotAfter):
		return fmt.Errorf("certificate of %q has expired at %s: renew it", c.Subject, c.NotAfter.Format(time.RFC3339))
	default:
		return nil
	}
}

// Request is for the certificate of one machine.
type Request struct {
	Machine identity.ID
	// Public is the TPM2B_PUBLIC of its key.
	Public []byte
	// At is when it was first asked for, and Lifetime how long it is good for from then on;
	// 0 means MaxLifetime, as does more.
	At       time.Time
	Lifetime time.Duration
}

// Certificate is what a machine is given.
type Certificate struct {
	// Chain in DER, the key's own certificate first, without the root.
	Chain [][]byte
	// Serial of the key's own certificate.
	Serial *big.Int
	// NotAfter is when it ends.
	NotAfter time.Time
}

// Issue certifies a key. For one request there is one certificate: who asks again gets the
// same, as long as the authority is the same. Errors of the key are ErrPublic.
func (a *Authority) Issue(request Request) (Certificate, error) {
	key, err := ReadPublic(request.Public)
	if err != nil {
		return Certificate{}, err
	}

	lifetime := request.Lifetime
	if lifetime <= 0 || lifetime > MaxLifetime {
		lifetime = MaxLifetime
	}

	at := request.At.UTC().Truncate(time.Second)
	end := at.Add(lifetime)

	if end.After(a.issuer.NotAfter) {
		end = a.issuer.NotAfter
	}

	template := &x509.Certificate{
		SerialNumber: serial(request),
		Subject:      pkix.Name{CommonName: CommonName(request.Machine)},
		NotBefore:    at.Add(-early),
		NotAfter:     end,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		// None of TCG's extended key usages (tcg-cap-verifiedTPMResidency and its like):
		// residency is for whoever relies on the certificate to verify.
		BasicConstraintsValid: true,
	}

	// Without randomness ECDSA is deterministic (RFC 6979), as RSA and Ed25519 are anyway: one
	// request is one certificate, and one agent to SPIRE, which names agents by it.
	der, err := x509.CreateCertificate(nil, template, a.issuer, key, a.key)
	if err != nil {
		return Certificate{}, fmt.Errorf("sign certificate of machine %s: %w", request.Machine.Path(), err)
	}

	out := Certificate{Chain: [][]byte{der}, Serial: template.SerialNumber, NotAfter: end}
	for _, above := range a.above {
		out.Chain = append(out.Chain, above.Raw)
	}

	return out, nil
}

// serial is a number that no other machine or key gets, and this one each time.
func serial(request Request) *big.Int {
	sum := sha256.Sum256([]byte(request.Machine.UID + "\x00" + Fingerprint(request.Public)))
	// Neither negative nor 0.
	sum[0] = sum[0]&0x7f | 0x40

	return new(big.Int).SetBytes(sum[:serialBytes])
}
