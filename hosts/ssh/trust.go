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

// Trust says which key a host has to show: the pinned one, or one that an authority has certified.
type Trust struct {
	// HostKey is the pinned fingerprint, as [Conn.HostKey] gives it.
	HostKey string
	// CertAuthorities are public keys, each as a line of authorized_keys(5). A certificate of a host
	// by one of them has to name the address that was dialled, without its port.
	CertAuthorities []string

	authorities []cryptossh.PublicKey
}

// Empty says that no key is trusted.
func (t Trust) Empty() bool { return t.HostKey == "" && len(t.CertAuthorities) == 0 }

// parse gives the authorities.
func (t Trust) parse() ([]cryptossh.PublicKey, error) {
	if t.Empty() {
		return nil, errors.New("nothing says which key the host has")
	}

	if t.HostKey != "" && !strings.HasPrefix(t.HostKey, "SHA256:") {
		return nil, fmt.Errorf("pinned host key %q: must be SHA256: and a fingerprint, as ssh-keygen -l prints it", t.HostKey)
	}

	var out []cryptossh.PublicKey

	for i, line := range t.CertAuthorities {
		key, _, options, rest, err := cryptossh.ParseAuthorizedKey([]byte(line))
		if err != nil || len(options) > 0 || len(rest) > 0 {
			return nil, fmt.Errorf("certificate authority %d: must be one public key, as ssh-keygen writes it to a file .pub", i+1)
		}

		out = append(out, key)
	}

	return out, nil
}

// algorithms in one order for good: a host with several keys always shows the same. Certificates
// come first where they count.
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

// check says what is wrong with a key that the host at an address has shown; nil for one that is
// trusted.
func (t Trust) check(address string, key cryptossh.PublicKey, now time.Time) error {
	if fingerprint(key) == t.HostKey {
		return nil
	}

	if len(t.CertAuthorities) == 0 {
		return ErrHostKeyChanged
	}

	cert, ok := key.(*cryptossh.Certificate)

	switch {
	case !ok:
		return errors.New("it has no certificate")
	case len(cert.ValidPrincipals) == 0:
		return errors.New("its certificate names no host, so that it is one of all hosts")
	case cert.Signature.Format == cryptossh.KeyAlgoRSA:
		return errors.New("its certificate is signed with SHA-1")
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

// fingerprint of a key; of a certificate, that of the key in it.
func fingerprint(key cryptossh.PublicKey) string {
	if cert, ok := key.(*cryptossh.Certificate); ok {
		key = cert.Key
	}

	return cryptossh.FingerprintSHA256(key)
}

// untrusted is a host that was not logged in to, for its key.
func (t Target) untrusted(shown string, refusal error) *Error {
	if errors.Is(refusal, ErrHostKeyChanged) {
		return fault(HostKeyChanged, ErrHostKeyChanged, fmt.Sprintf(
			"%s shows the key %s in place of %s: if it was installed anew, remove the pinned key; nothing was sent to it",
			t.name(), shown, t.HostKey))
	}

	return fault(HostCertificateRefused, refusal, fmt.Sprintf(
		"%s shows the key %s, which no authority has certified for %s; nothing was sent to it", t.name(), shown, hostOf(t.Address)))
}

func hostOf(address string) string {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}

	return host
}

// errSeen ends a connection once the host has shown its key.
var errSeen = errors.New("the key is seen")

// HostKey asks the host which key it has, and sends nothing: whoever answers at its address chooses
// the answer.
func (d *Dialer) HostKey(ctx context.Context, target Target) (string, error) {
	start := d.Clock.Now()
	shown, err := d.ask(ctx, target)
	d.observe("hostkey", start, err)

	return shown, err
}

func (d *Dialer) ask(ctx context.Context, target Target) (string, error) {
	raw, err := d.connect(ctx, target, dialTries)
	if err != nil {
		return "", err
	}
	defer raw.Close() //nolint:errcheck // the key has been seen, or not

	ctx, cancel := context.WithTimeout(ctx, d.HandshakeTimeout)
	defer cancel()

	stop := context.AfterFunc(ctx, func() { _ = raw.Close() })
	defer stop()

	shown := ""
	_, _, _, err = cryptossh.NewClientConn(raw, target.Address, &cryptossh.ClientConfig{ //nolint:dogsled // it never connects
		HostKeyAlgorithms: Trust{}.algorithms(),
		HostKeyCallback: func(_ string, _ net.Addr, key cryptossh.PublicKey) error {
			shown = fingerprint(key)

			return errSeen
		},
	})

	if shown == "" {
		return "", d.refusal(ctx, target, err)
	}

	return shown, nil
}
