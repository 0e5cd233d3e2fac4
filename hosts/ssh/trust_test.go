// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ssh_test

import (
	"crypto/rand"
	"crypto/rsa"
	"strings"
	"testing"
	"time"

	cryptossh "golang.org/x/crypto/ssh"

	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/sim/machost"
	"github.com/hyperfleet/hyperfleet/sim/machost/machosttest"
)

// authority returns a key that certifies hosts, and its line of a .pub file.
func authority(t *testing.T) (cryptossh.Signer, string) {
	t.Helper()

	private, line := machosttest.NewKey(t)

	signer, err := cryptossh.ParsePrivateKey([]byte(private.Reveal()))
	must(t, err)

	return signer, line
}

// sha1 returns a signer with the obsolete SHA-1 algorithm.
func sha1(t *testing.T) (cryptossh.Signer, string) {
	t.Helper()

	key, err := rsa.GenerateKey(rand.Reader, 2048)
	must(t, err)

	signer, err := cryptossh.NewSignerFromKey(key)
	must(t, err)

	algorithmSigner, ok := signer.(cryptossh.AlgorithmSigner)
	if !ok {
		t.Fatal("no AlgorithmSigner")
	}

	old, err := cryptossh.NewSignerWithAlgorithms(algorithmSigner, []string{cryptossh.KeyAlgoRSA})
	must(t, err)

	return old, string(cryptossh.MarshalAuthorizedKey(signer.PublicKey()))
}

// If a certificate authority is trusted, the operator logs in only to a host with a valid
// certificate of that authority.
func TestCertifiedHosts(t *testing.T) {
	t.Parallel()

	ours, line := authority(t)
	others, otherLine := authority(t)
	old, oldLine := sha1(t)

	cases := map[string]struct {
		// by signs the certificate that the host presents. It is nil for no certificate.
		by     cryptossh.Signer
		change func(*cryptossh.Certificate)
		trust  ssh.Trust
		// own pins the host's own key.
		own  bool
		says string
	}{
		"certified":           {by: ours},
		"one of two":          {by: others, trust: ssh.Trust{CertAuthorities: []string{line, otherLine}}},
		"two names":           {by: ours, change: func(c *cryptossh.Certificate) { c.ValidPrincipals = []string{"rack-1", "127.0.0.1"} }},
		"no certificate":      {says: "presented no certificate"},
		"no certificate, pin": {own: true},
		"another pin":         {trust: ssh.Trust{CertAuthorities: []string{line}, HostKey: "SHA256:another"}, says: "presented no certificate"},
		"wrong authority":     {by: others, says: "no authorities for hostname"},
		"by nobody of two":    {by: others, trust: ssh.Trust{CertAuthorities: []string{line, oldLine}}, says: "no authorities for hostname"},
		"expired": {
			by: ours, says: "cert has expired",
			change: func(c *cryptossh.Certificate) { c.ValidBefore = uint64(time.Now().Add(-time.Minute).Unix()) },
		},
		"not yet": {
			by: ours, says: "cert is not yet valid",
			change: func(c *cryptossh.Certificate) { c.ValidAfter = uint64(time.Now().Add(time.Minute).Unix()) },
		},
		"of another host": {
			by: ours, says: `principal "127.0.0.1" not in the set`,
			change: func(c *cryptossh.Certificate) { c.ValidPrincipals = []string{"127.0.0.2"} },
		},
		"of all hosts": {
			by: ours, says: "names no host",
			change: func(c *cryptossh.Certificate) { c.ValidPrincipals = nil },
		},
		"of a user": {
			by: ours, says: "has type 1",
			change: func(c *cryptossh.Certificate) { c.CertType = cryptossh.UserCert },
		},
		"of what we don't know": {
			by: ours, says: "unsupported critical option",
			change: func(c *cryptossh.Certificate) { c.CriticalOptions = map[string]string{"verify-required": ""} },
		},
		"signed with SHA-1": {by: old, trust: ssh.Trust{CertAuthorities: []string{oldLine}}, says: "SHA-1"},
	}

	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			private, authorized := machosttest.NewKey(t)
			host := machosttest.Start(t, machost.Options{Light: true, AuthorizedKeys: []string{authorized}})

			if tc.by != nil {
				must(t, host.Certify(tc.by, tc.change))
			}

			trust := tc.trust
			if len(trust.CertAuthorities) == 0 {
				trust.CertAuthorities = []string{line}
			}

			if tc.own {
				trust.HostKey = host.HostKey()
			}

			conn, err := dial(t, ssh.Target{Name: "h", Address: host.Address(), User: "m1", PrivateKey: private, Trust: trust}, ssh.Options{})
			if tc.says == "" {
				if err != nil || conn.HostKey() != host.HostKey() {
					t.Error(err)
				}

				return
			}

			if ssh.KindOf(err) != ssh.HostCertificateRefused || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("kind %q, and not that %s: %v", ssh.KindOf(err), tc.says, err)
			}

			if ssh.HostKeyOf(err) != "" || host.Logins() > 0 {
				t.Errorf("%d logins, and the key %q to be pinned", host.Logins(), ssh.HostKeyOf(err))
			}
		})
	}
}

// An authority must be exactly one public key without options.
func TestAuthoritiesThatAreNone(t *testing.T) {
	t.Parallel()

	private, line := machosttest.NewKey(t)

	for name, text := range map[string]string{
		"nothing": " ", "a word": "ssh-ed25519", "a key cut off": line[:40], "two": line + line, "options": `command="x" ` + line,
	} {
		_, err := dial(t, ssh.Target{
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

	ours, line := authority(t)
	others, _ := authority(t)
	private, authorized := machosttest.NewKey(t)
	host := machosttest.Start(t, machost.Options{System: machost.Linux, AuthorizedKeys: []string{authorized}})

	sshd, err := host.StartOpenSSH(t.Context())
	must(t, err)

	t.Cleanup(func() { _ = sshd.Close() })

	target := ssh.Target{
		Address: sshd.Address(), User: sshd.User, PrivateKey: private, Trust: ssh.Trust{CertAuthorities: []string{line}},
	}
	refused := func(says string) {
		t.Helper()

		if _, err := dial(t, target, ssh.Options{}); ssh.KindOf(err) != ssh.HostCertificateRefused || !strings.Contains(err.Error(), says) {
			t.Errorf("not that %s: %v", says, err)
		}
	}
	certify := func(by cryptossh.Signer, change func(*cryptossh.Certificate)) {
		t.Helper()

		must(t, sshd.Certify(by, change))
	}

	refused("presented no certificate")
	certify(others, nil)
	refused("no authorities")
	certify(ours, func(c *cryptossh.Certificate) { c.ValidPrincipals = []string{"rack-2"} })
	refused(`principal "127.0.0.1"`)
	certify(ours, nil)

	conn, err := dial(t, target, ssh.Options{})
	if err != nil || conn.HostKey() != sshd.HostKey {
		t.Errorf("certified: %v", err)
	}

	target.Trust = ssh.Trust{HostKey: sshd.HostKey}
	if _, err := dial(t, target, ssh.Options{}); err != nil {
		t.Errorf("pinned, and certified beside: %v", err)
	}
}
