// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"strings"
	"testing"
	"time"

	cryptossh "golang.org/x/crypto/ssh"

	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// newAuthority returns a key that certifies hosts, and its line of a .pub file.
func newAuthority(t *testing.T) (cryptossh.Signer, string) {
	t.Helper()

	private, line := machosttest.NewKey(t)

	signer, err := cryptossh.ParsePrivateKey([]byte(private.Reveal()))
	must.Do(t, err)

	return signer, line
}

// newSHA1Signer returns a signer with the obsolete SHA-1 algorithm.
func newSHA1Signer(t *testing.T) (cryptossh.Signer, string) {
	t.Helper()

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must.Do(t, err)

	signer, err := cryptossh.NewSignerFromKey(key)
	must.Do(t, err)

	algorithmSigner, ok := signer.(cryptossh.AlgorithmSigner)
	if !ok {
		t.Fatal("no AlgorithmSigner")
	}

	old, err := cryptossh.NewSignerWithAlgorithms(algorithmSigner, []string{cryptossh.KeyAlgoRSA})
	must.Do(t, err)

	return old, string(cryptossh.MarshalAuthorizedKey(signer.PublicKey()))
}

// If a certificate authority is trusted, the operator logs in only to a host with a valid
// certificate of that authority.
func TestCertifiedHosts(t *testing.T) {
	t.Parallel()

	ours, line := newAuthority(t)
	others, otherLine := newAuthority(t)
	old, oldLine := newSHA1Signer(t)

	cases := map[string]struct {
		// by signs the certificate that the host presents. It is nil for no certificate.
		by     cryptossh.Signer
		change func(*cryptossh.Certificate)
		trust  ssh.Trust
		// own pins the host's own key.
		own      bool
		wantText string
	}{
		"certified":               {by: ours},
		"one of two":              {by: others, trust: ssh.Trust{CertAuthorities: []string{line, otherLine}}},
		"two names":               {by: ours, change: func(c *cryptossh.Certificate) { c.ValidPrincipals = []string{"rack-1", "127.0.0.1"} }},
		"no certificate":          {wantText: "presented no certificate"},
		"no certificate, pin":     {own: true},
		"another pin":             {trust: ssh.Trust{CertAuthorities: []string{line}, HostKey: "SHA256:another"}, wantText: "presented no certificate"},
		"wrong authority":         {by: others, wantText: "no authorities for hostname"},
		"none of two authorities": {by: others, trust: ssh.Trust{CertAuthorities: []string{line, oldLine}}, wantText: "no authorities for hostname"},
		"expired": {
			by: ours, wantText: "cert has expired",
			change: func(c *cryptossh.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Minute).Unix()) },
		},
		"not yet": {
			by: ours, wantText: "cert is not yet valid",
			change: func(c *cryptossh.Certificate) { c.ValidAfter = uint64(time.Now().Add(time.Minute).Unix()) },
		},
		"of another host": {
			by: ours, wantText: `principal "127.0.0.1" not in the set`,
			change: func(c *cryptossh.Certificate) { c.ValidPrincipals = []string{"127.0.0.2"} },
		},
		"of all hosts": {
			by: ours, wantText: "names no host",
			change: func(c *cryptossh.Certificate) { c.ValidPrincipals = nil },
		},
		"of a user": {
			by: ours, wantText: "has type 1",
			change: func(c *cryptossh.Certificate) { c.CertType = cryptossh.UserCert },
		},
		"unknown critical option": {
			by: ours, wantText: "unsupported critical option",
			change: func(c *cryptossh.Certificate) { c.CriticalOptions = map[string]string{"verify-required": ""} },
		},
		"signed with SHA-1": {by: old, trust: ssh.Trust{CertAuthorities: []string{oldLine}}, wantText: "SHA-1"},
	}

	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			private, authorized := machosttest.NewKey(t)
			host := machosttest.Start(t, machost.Options{Light: true, AuthorizedKeys: []string{authorized}})

			if tc.by != nil {
				must.Do(t, host.Certify(tc.by, tc.change))
			}

			trust := tc.trust
			if len(trust.CertAuthorities) == 0 {
				trust.CertAuthorities = []string{line}
			}

			if tc.own {
				trust.HostKey = host.HostKey()
			}

			conn, err := dialHost(t, ssh.Target{Name: "h", Address: host.Address(), User: "m1", PrivateKey: private, Trust: trust}, ssh.Options{})
			if tc.wantText == "" {
				if err != nil || conn.HostKey() != host.HostKey() {
					t.Error(err)
				}

				return
			}

			if ssh.KindOf(err) != ssh.HostCertificateRefused || !strings.Contains(err.Error(), tc.wantText) {
				t.Errorf("kind %q, want an error with %q: %v", ssh.KindOf(err), tc.wantText, err)
			}

			if ssh.HostKeyOf(err) != "" || host.Logins() > 0 {
				t.Errorf("%d logins, and key %q in the error", host.Logins(), ssh.HostKeyOf(err))
			}
		})
	}
}

// A host has a key of each type, and proves each of them. The pinned one may be of any type, for example because the
// host got a key of a newer type since.
func TestPinnedKeyOfAnyType(t *testing.T) {
	t.Parallel()

	newSigner := func(key any, err error) cryptossh.Signer {
		must.Do(t, err)

		signer, err := cryptossh.NewSignerFromKey(key)
		must.Do(t, err)

		return signer
	}
	private, line := machosttest.NewKey(t)
	_, authority := newAuthority(t)
	host := machosttest.Start(t, machost.Options{Light: true, AuthorizedKeys: []string{line}})
	target := ssh.Target{Name: "h", Address: host.Address(), User: "m1", PrivateKey: private}

	for name, signer := range map[string]cryptossh.Signer{
		"RSA":   newSigner(rsa.GenerateKey(rand.Reader, 2048)),
		"ECDSA": newSigner(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)),
	} {
		host.AddKey(signer)

		target.HostKey = cryptossh.FingerprintSHA256(signer.PublicKey())
		for _, authorities := range [][]string{nil, {authority}} {
			target.CertAuthorities = authorities
			if conn, err := dialHost(t, target, ssh.Options{}); err != nil || conn.HostKey() != target.HostKey {
				t.Errorf("a pinned key of type %s beside others, and %d authorities: %v", name, len(authorities), err)
			}
		}
	}

	target.CertAuthorities = nil

	logins := host.Logins()
	target.HostKey = "SHA256:another"

	_, err := dialHost(t, target, ssh.Options{})
	if ssh.KindOf(err) != ssh.HostKeyChanged || !strings.Contains(err.Error(), host.HostKey()) || host.Logins() != logins {
		t.Errorf("a host with other keys: %v, and %d more logins", err, host.Logins()-logins)
	}
}

// An authority must be exactly one public key without options.
func TestInvalidAuthorities(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)

	for name, text := range map[string]string{
		"nothing": " ", "one word": "ssh-ed25519", "a truncated key": line[:40], "two": line + line, "options": `command="x" ` + line,
	} {
		_, err := dialHost(t, ssh.Target{
			Address: "127.0.0.1:1", User: "m1", PrivateKey: private, Trust: ssh.Trust{CertAuthorities: []string{line, text}},
		}, ssh.Options{})
		if ssh.KindOf(err) != ssh.Misconfigured || !strings.Contains(err.Error(), "certificate authority 2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// OpenSSH's server presents certificates like the simulator.
func TestCertifiedByOpenSSH(t *testing.T) {
	t.Parallel()

	ours, line := newAuthority(t)
	others, _ := newAuthority(t)
	private, authorized := machosttest.NewKey(t)
	host := machosttest.Start(t, machost.Options{System: machost.Linux, AuthorizedKeys: []string{authorized}})

	sshd, err := host.StartOpenSSH(t.Context())
	must.Do(t, err)

	t.Cleanup(func() { _ = sshd.Close() })

	target := ssh.Target{
		Address: sshd.Address(), User: sshd.User, PrivateKey: private, Trust: ssh.Trust{CertAuthorities: []string{line}},
	}
	refused := func(wantText string) {
		t.Helper()

		if _, err := dialHost(t, target, ssh.Options{}); ssh.KindOf(err) != ssh.HostCertificateRefused || !strings.Contains(err.Error(), wantText) {
			t.Errorf("want an error with %q: %v", wantText, err)
		}
	}
	certify := func(by cryptossh.Signer, change func(*cryptossh.Certificate)) {
		t.Helper()

		must.Do(t, sshd.Certify(by, change))
	}

	refused("presented no certificate")
	certify(others, nil)
	refused("no authorities")
	certify(ours, func(c *cryptossh.Certificate) { c.ValidPrincipals = []string{"rack-2"} })
	refused(`principal "127.0.0.1"`)
	certify(ours, nil)

	conn, err := dialHost(t, target, ssh.Options{})
	if err != nil || conn.HostKey() != sshd.HostKey {
		t.Errorf("host with certificate: %v", err)
	}

	target.Trust = ssh.Trust{HostKey: sshd.HostKey}
	if _, err := dialHost(t, target, ssh.Options{}); err != nil {
		t.Errorf("pinned host with certificate: %v", err)
	}
}
