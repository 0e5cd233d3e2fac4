// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	cryptossh "golang.org/x/crypto/ssh"
)

// Trust says which key a host must present: the pinned key, or a key that an authority has
// certified.
type Trust struct {
	// HostKey is the pinned fingerprint, in the format of [Conn.HostKey].
	HostKey string
	// CertAuthorities are public keys, each as a line of authorized_keys(5). A host certificate
	// that one of them has signed must name the dialed address, without its port.
	CertAuthorities []string

	// authorities are the parsed CertAuthorities. Dial sets them.
	authorities []cryptossh.PublicKey
}

// IsEmpty returns true if no key is trusted.
func (t Trust) IsEmpty() bool { return t.HostKey == "" && len(t.CertAuthorities) == 0 }

// parseAuthorities returns the public keys of the certificate authorities. It returns an error if
// the Trust is invalid.
func (t Trust) parseAuthorities() ([]cryptossh.PublicKey, error) {
	if t.IsEmpty() {
		return nil, errors.New("no host key and no certificate authority is trusted")
	}

	if t.HostKey != "" && !strings.HasPrefix(t.HostKey, "SHA256:") {
		return nil, fmt.Errorf("pinned host key %q: must be a SHA256: fingerprint, as ssh-keygen -l prints it", t.HostKey)
	}

	var out []cryptossh.PublicKey

	for i, line := range t.CertAuthorities {
		key, _, options, rest, err := cryptossh.ParseAuthorizedKey([]byte(line))
		if err != nil || len(options) > 0 || len(rest) > 0 {
			return nil, fmt.Errorf("certificate authority %d: must be one public key, as ssh-keygen writes it to a .pub file", i+1)
		}

		out = append(out, key)
	}

	return out, nil
}

// algorithms returns the host key algorithms in a fixed order, so that a host with several keys
// always presents the same key. If there are certificate authorities, certificates come first.
func (t Trust) algorithms() []string {
	keys := []string{
		cryptossh.KeyAlgoED25519,
		cryptossh.KeyAlgoECDSA256, cryptossh.KeyAlgoECDSA384, cryptossh.KeyAlgoECDSA521,
		cryptossh.KeyAlgoRSASHA512, cryptossh.KeyAlgoRSASHA256,
	}
	if len(t.CertAuthorities) == 0 {
		return keys
	}

	return append([]string{
		cryptossh.CertAlgoED25519v01,
		cryptossh.CertAlgoECDSA256v01, cryptossh.CertAlgoECDSA384v01, cryptossh.CertAlgoECDSA521v01,
		cryptossh.CertAlgoRSASHA512v01, cryptossh.CertAlgoRSASHA256v01,
	}, keys...)
}

// shouldExcludeKeyType returns true if a login failed only because the host presented a key that is not trusted. The
// host may also have the pinned key. It presents that key if the client does not accept the type of the presented one.
func (t Trust) shouldExcludeKeyType(err error) bool {
	kind := KindOf(err)

	return kind == HostKeyChanged || kind == HostCertificateRefused && t.HostKey != ""
}

// withoutKeyType returns the algorithms without those of a key's type.
func withoutKeyType(algorithms []string, key cryptossh.PublicKey) []string {
	types := []string{key.Type()}

	switch key.Type() {
	case cryptossh.KeyAlgoRSA:
		types = append(types, cryptossh.KeyAlgoRSASHA512, cryptossh.KeyAlgoRSASHA256)
	case cryptossh.CertAlgoRSAv01:
		types = append(types, cryptossh.CertAlgoRSASHA512v01, cryptossh.CertAlgoRSASHA256v01)
	}

	return slices.DeleteFunc(slices.Clone(algorithms), func(algorithm string) bool { return slices.Contains(types, algorithm) })
}

// verifyKey returns an error if the key that the host at an address has presented is not trusted.
func (t Trust) verifyKey(address string, key cryptossh.PublicKey, now time.Time) error {
	if fingerprint(key) == t.HostKey {
		return nil
	}

	if len(t.CertAuthorities) == 0 {
		return ErrHostKeyChanged
	}

	cert, ok := key.(*cryptossh.Certificate)

	switch {
	case !ok:
		return errors.New("the host presented no certificate")
	case len(cert.ValidPrincipals) == 0:
		return errors.New("the certificate names no host, so it would be valid for all hosts")
	case cert.Signature.Format == cryptossh.KeyAlgoRSA:
		return errors.New("the certificate is signed with SHA-1")
	}

	checker := &cryptossh.CertChecker{
		IsHostAuthority: func(authority cryptossh.PublicKey, _ string) bool {
			return slices.ContainsFunc(t.authorities, func(known cryptossh.PublicKey) bool {
				return bytes.Equal(known.Marshal(), authority.Marshal())
			})
		},
		Clock: func() time.Time { return now },
	}

	return checker.CheckHostKey(address, nil, key)
}

// fingerprint returns the fingerprint of a key. For a certificate it is the fingerprint of the certified key.
func fingerprint(key cryptossh.PublicKey) string {
	if cert, ok := key.(*cryptossh.Certificate); ok {
		key = cert.Key
	}

	return cryptossh.FingerprintSHA256(key)
}

// untrustedKeyError returns the error for a host whose key is not trusted.
func (t Target) untrustedKeyError(presentedFingerprint string, keyErr error) *Error {
	if errors.Is(keyErr, ErrHostKeyChanged) {
		return newError(HostKeyChanged, ErrHostKeyChanged, fmt.Sprintf(
			"%s presents the key %s instead of %s: if the host was reinstalled, remove the pinned key; nothing was sent to the host",
			t.name(), presentedFingerprint, t.HostKey))
	}

	return newError(HostCertificateRefused, keyErr, fmt.Sprintf(
		"%s presents the key %s, which no authority has certified for %s; nothing was sent to the host",
		t.name(), presentedFingerprint, hostOf(t.Address)))
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}

	return host
}

// errKeySeen aborts a handshake after the host has presented its key.
var errKeySeen = errors.New("the host key was received")

// HostKey returns the fingerprint of the key that the host presents. It does not log in and sends nothing
// secret. The key is not authenticated: any server at the address can respond.
func (d *Dialer) HostKey(ctx context.Context, target Target) (string, error) {
	start := d.Clock.Now()
	presentedFingerprint, err := d.fetchHostKey(ctx, target)
	d.observe("hostkey", start, err)

	return presentedFingerprint, err
}

// fetchHostKey returns the fingerprint of the key that the host presents. It ends the handshake before a
// login.
func (d *Dialer) fetchHostKey(ctx context.Context, target Target) (string, error) {
	raw, err := d.connect(ctx, target, dialAttempts)
	if err != nil {
		return "", err
	}
	defer raw.Close() //nolint:errcheck // the result is known before

	ctx, cancel := context.WithTimeout(ctx, d.HandshakeTimeout)
	defer cancel()

	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()

	presentedFingerprint := ""
	_, _, _, err = cryptossh.NewClientConn(raw, target.Address, &cryptossh.ClientConfig{ //nolint:dogsled // never connects
		HostKeyAlgorithms: Trust{}.algorithms(),
		HostKeyCallback: func(_ string, _ net.Addr, key cryptossh.PublicKey) error {
			presentedFingerprint = fingerprint(key)

			return errKeySeen
		},
	})

	if presentedFingerprint == "" {
		return "", d.loginError(ctx, target, err)
	}

	return presentedFingerprint, nil
}
