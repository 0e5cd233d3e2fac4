// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

// newTestAuthority returns the operator's own CA in a cluster.
func newTestAuthority(t *testing.T, c client.Client, now clock.PassiveClock) *authority {
	t.Helper()

	cfg := config.Default()
	cfg.Guest.URL, cfg.Webhooks.URL = "https://127.0.0.1:8443", "https://hyperfleet.example.com"

	out, err := ensureAuthority(t.Context(), c, c, now, cfg)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// callAsMachine calls the operator as a machine that trusts only the given CA bundle.
func callAsMachine(t *testing.T, address, host, bundle string) error {
	t.Helper()

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(bundle))

	caller := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		TLSClientConfig:   &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12, ServerName: host},
	}}

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+address+"/machines", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}

	response, err := caller.Do(request)
	if err == nil {
		_ = response.Body.Close()
	}

	return err
}

// TestMachinesTrustTheOwnAuthority checks that machines with the operator's own CA can connect to every replica, and
// that machines with another CA cannot.
func TestMachinesTrustTheOwnAuthority(t *testing.T) {
	t.Parallel()

	// The manifests contain this Secret without data.
	empty := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: authoritySecret}}
	cluster, elsewhere := newCluster(t, "a", empty), newCluster(t, "b")

	cfg := config.Default()
	cfg.Guest.URL = "https://127.0.0.1:8443"

	identity, err := loadIdentity(t.Context(), cluster, cluster, cfg)
	if err != nil {
		t.Fatal(err)
	}

	machines, err := newMachineSettings(cfg, identity)
	if err != nil {
		t.Fatal(err)
	}

	replica := newTestAuthority(t, cluster, clock.RealClock{})
	other := newTestAuthority(t, elsewhere, clock.RealClock{})

	for _, one := range []*authority{identity.webhookAuthority, replica} {
		address := startServer(t, &server{authority: one})

		for _, host := range []string{"127.0.0.1", "hyperfleet-webhooks.hyperfleet-system.svc"} {
			if err := callAsMachine(t, address, host, machines.GuestCABundle()); err != nil {
				t.Errorf("a machine that trusts the authority: %v", err)
			}
		}

		for name, why := range map[string]string{other.pem: "another authority", "": "nobody"} {
			if err := callAsMachine(t, address, "127.0.0.1", name); err == nil || !strings.Contains(err.Error(), "unknown authority") {
				t.Errorf("a machine that trusts %s: %v", why, err)
			}
		}

		if err := callAsMachine(t, address, "elsewhere.example.com", machines.GuestCABundle()); err == nil {
			t.Error("it shows itself as somebody else")
		}
	}

	if strings.Contains(machines.GuestCABundle(), "KEY") {
		t.Error("machines get the authority's key")
	}

	if !slices.Contains(presentedCertificate(t, startServer(t, &server{authority: replica})).DNSNames, "hyperfleet.example.com") {
		t.Error("it has not the name that CI platforms know")
	}
}

// TestOwnAuthorityIsForWhoHasNone checks that the operator creates no CA if it does not need one, such as with a
// configured certificate.
func TestOwnAuthorityIsForWhoHasNone(t *testing.T) {
	t.Parallel()

	for name, edit := range map[string]func(*config.OperatorConfig){
		"another area":   func(c *config.OperatorConfig) { c.Controllers = []string{config.AreaHosts} },
		"nobody calls":   func(c *config.OperatorConfig) { c.Webhooks.BindAddress = "0" },
		"plain":          func(c *config.OperatorConfig) { c.Webhooks.PlainHTTP = true },
		"a certificate":  func(c *config.OperatorConfig) { c.Webhooks.CertFile, c.Webhooks.KeyFile = "tls.crt", "tls.key" },
		"no own allowed": func(c *config.OperatorConfig) { c.Webhooks.OwnAuthority = false },
	} {
		cfg := config.Default()
		edit(&cfg)

		c := newCluster(t, "a")

		out, err := loadIdentity(t.Context(), c, c, cfg)
		if err != nil || out.webhookAuthority != nil {
			t.Errorf("%s: %v, %v", name, out.webhookAuthority, err)
		}

		machines, err := newMachineSettings(cfg, out)
		if err != nil || machines.GuestCABundle != nil {
			t.Errorf("%s: machines get a CA bundle (%v)", name, err)
		}
	}
}

// TestOwnCertificateIsRenewed checks that the server certificate is renewed by the same CA before it expires, and that
// the errors for an expired or invalid CA name the fix.
func TestOwnCertificateIsRenewed(t *testing.T) {
	t.Parallel()

	c := newCluster(t, "a")
	now := testclock.NewFakeClock(time.Now())
	a := newTestAuthority(t, c, now)

	shown := func() *x509.Certificate {
		pair, err := a.getCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}

		return pair.Leaf
	}
	first := shown()

	now.Step(certificateLifetime / 2)

	if !shown().Equal(first) {
		t.Error("it is renewed at half of its time")
	}

	now.Step(certificateLifetime / 4)

	if second := shown(); second.Equal(first) || second.CheckSignatureFrom(a.caCertificate) != nil || !second.NotAfter.After(first.NotAfter) {
		t.Error("it is not renewed in time, or by another authority")
	}

	now.Step(authorityLifetime)

	cfg := config.Default()
	if _, err := ensureAuthority(t.Context(), c, c, now, cfg); err == nil || !strings.Contains(err.Error(), "the CA certificate has expired: delete the data of the Secret") {
		t.Errorf("after its end: %v", err)
	}

	broken := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: authoritySecret},
		Data:       map[string][]byte{"tls.key": []byte("a-secret-text")},
	}

	c = newCluster(t, "b", broken)

	_, err := ensureAuthority(t.Context(), c, c, now, cfg)
	if err == nil || !strings.Contains(err.Error(), "it has no CA certificate") || strings.Contains(err.Error(), "a-secret-text") {
		t.Errorf("without a certificate: %v", err)
	}
}

// TestAuthoritiesOfMachinesAreReadAgain checks that new machines receive a CA that was renewed in its file, and that the
// last valid CA is used while the file is invalid.
func TestAuthoritiesOfMachinesAreReadAgain(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := config.Default()
	cfg.Guest.CAFile = file

	for _, text := range []string{"", "no PEM"} {
		if text != "" {
			write(text)
		}

		if _, err := newMachineSettings(cfg, identity{}); err == nil || !strings.Contains(err.Error(), "guest.caFile") {
			t.Errorf("%q: %v", text, err)
		}
	}

	first, second := newTestAuthority(t, newCluster(t, "a"), clock.RealClock{}), newTestAuthority(t, newCluster(t, "b"), clock.RealClock{})

	write(first.pem)

	// guest.caFile overrides the operator's own CA.
	machines, err := newMachineSettings(cfg, identity{webhookAuthority: second})
	if err != nil || machines.GuestCABundle() != first.pem {
		t.Fatalf("%v", err)
	}

	write(second.pem)

	if machines.GuestCABundle() != second.pem {
		t.Error("machines get the old authority")
	}

	write("half of one")

	if machines.GuestCABundle() != second.pem {
		t.Error("machines get an invalid authority")
	}
}
