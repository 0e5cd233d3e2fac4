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

// authorityOf is what an operator has of its own in a cluster.
func authorityOf(t *testing.T, c client.Client, now clock.PassiveClock) *authority {
	t.Helper()

	cfg := config.Default()
	cfg.Guest.URL, cfg.Webhooks.URL = "https://127.0.0.1:8443", "https://hyperfleet.example.com"

	out, err := readAuthority(t.Context(), c, c, now, cfg)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// asMachine calls the operator as a machine that trusts a bundle and nobody else.
func asMachine(t *testing.T, address, host, bundle string) error {
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

// Machines are told to trust the operator's own authority, and get through, to every replica;
// those that trust another one don't.
func TestMachinesTrustTheOwnAuthority(t *testing.T) {
	t.Parallel()

	// As the manifests have it: without data.
	empty := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: authoritySecret}}
	cluster, elsewhere := clusterOf(t, "a", empty), clusterOf(t, "b")

	cfg := config.Default()
	cfg.Guest.URL = "https://127.0.0.1:8443"

	told, err := identify(t.Context(), cluster, cluster, cfg)
	if err != nil {
		t.Fatal(err)
	}

	machines, err := settings(cfg, told)
	if err != nil {
		t.Fatal(err)
	}

	replica := authorityOf(t, cluster, clock.RealClock{})
	other := authorityOf(t, elsewhere, clock.RealClock{})

	for _, one := range []*authority{told.webhooks, replica} {
		address := serves(t, &server{authority: one})

		for _, host := range []string{"127.0.0.1", "hyperfleet-webhooks.hyperfleet-system.svc"} {
			if err := asMachine(t, address, host, machines.GuestCABundle()); err != nil {
				t.Errorf("a machine that trusts the authority: %v", err)
			}
		}

		for name, why := range map[string]string{other.pem: "another authority", "": "nobody"} {
			if err := asMachine(t, address, "127.0.0.1", name); err == nil || !strings.Contains(err.Error(), "unknown authority") {
				t.Errorf("a machine that trusts %s: %v", why, err)
			}
		}

		if err := asMachine(t, address, "elsewhere.example.com", machines.GuestCABundle()); err == nil {
			t.Error("it shows itself as somebody else")
		}
	}

	if strings.Contains(machines.GuestCABundle(), "KEY") {
		t.Error("machines get the authority's key")
	}

	if !slices.Contains(shows(t, serves(t, &server{authority: replica})).DNSNames, "hyperfleet.example.com") {
		t.Error("it has not the name that CI platforms know")
	}
}

// Nothing is made that nobody is shown, and what is given goes before.
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

		c := clusterOf(t, "a")

		out, err := identify(t.Context(), c, c, cfg)
		if err != nil || out.webhooks != nil {
			t.Errorf("%s: %v, %v", name, out.webhooks, err)
		}

		machines, err := settings(cfg, out)
		if err != nil || machines.GuestCABundle != nil {
			t.Errorf("%s: machines are told to trust somebody (%v)", name, err)
		}
	}
}

// What is shown is renewed before it ends, by the same authority; an authority that has ended, or
// is none, is told of with the fix.
func TestOwnCertificateIsRenewed(t *testing.T) {
	t.Parallel()

	c := clusterOf(t, "a")
	now := testclock.NewFakeClock(time.Now())
	a := authorityOf(t, c, now)

	shown := func() *x509.Certificate {
		pair, err := a.show(nil)
		if err != nil {
			t.Fatal(err)
		}

		return pair.Leaf
	}
	first := shown()

	now.Step(certificateLasts / 2)

	if !shown().Equal(first) {
		t.Error("it is renewed at half of its time")
	}

	now.Step(certificateLasts / 4)

	if second := shown(); second.Equal(first) || second.CheckSignatureFrom(a.certificate) != nil || !second.NotAfter.After(first.NotAfter) {
		t.Error("it is not renewed in time, or by another authority")
	}

	now.Step(authorityLasts)

	cfg := config.Default()
	if _, err := readAuthority(t.Context(), c, c, now, cfg); err == nil || !strings.Contains(err.Error(), "it has ended: take the data out of the secret") {
		t.Errorf("after its end: %v", err)
	}

	broken := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "hyperfleet-system", Name: authoritySecret},
		Data:       map[string][]byte{"tls.key": []byte("a-secret-text")},
	}

	c = clusterOf(t, "b", broken)

	_, err := readAuthority(t.Context(), c, c, now, cfg)
	if err == nil || !strings.Contains(err.Error(), "it holds no certificate") || strings.Contains(err.Error(), "a-secret-text") {
		t.Errorf("without a certificate: %v", err)
	}
}

// An authority that is renewed in its file is told to the next machine; one that can't be read
// for the moment is as it was.
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

		if _, err := settings(cfg, identity{}); err == nil || !strings.Contains(err.Error(), "read guest.caFile") {
			t.Errorf("%q: %v", text, err)
		}
	}

	first, second := authorityOf(t, clusterOf(t, "a"), clock.RealClock{}), authorityOf(t, clusterOf(t, "b"), clock.RealClock{})

	write(first.pem)

	// Their file goes before the operator's own.
	machines, err := settings(cfg, identity{webhooks: second})
	if err != nil || machines.GuestCABundle() != first.pem {
		t.Fatalf("%v", err)
	}

	write(second.pem)

	if machines.GuestCABundle() != second.pem {
		t.Error("the old authority is told")
	}

	write("half of one")

	if machines.GuestCABundle() != second.pem {
		t.Error("what is no authority is told")
	}
}
