// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package operator

import (
	"encoding/pem"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/bridge/credentials"
	"github.com/hyperfleet/hyperfleet/bridge/release"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	dnstest "github.com/hyperfleet/hyperfleet/test/dns"
	"github.com/hyperfleet/hyperfleet/test/must"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestRegistriesReachNoPrivateServer checks that a user of a bridge cannot make the operator call a server that only the
// operator can reach: with a registry at such an address, with a name whose address changes, or with a registry whose
// token service redirects the operator to the metadata service of the cloud and gets its token back. 127.0.0.2 stands for
// a public address.
func TestRegistriesReachNoPrivateServer(t *testing.T) { //nolint:paralleltest // the test changes the resolver of the process
	metadata := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.Errorf("the operator called the metadata service: %s", r.URL)
		fmt.Fprint(w, `{"Token": "of the cloud account"}`)
	}))
	t.Cleanup(metadata.Close)

	private := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("the operator called the private server: %s", r.URL)
	}))
	t.Cleanup(private.Close)

	attacker := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "close")

		switch token := r.Header.Get("Authorization"); {
		case strings.HasPrefix(token, "Bearer"):
			t.Errorf("the registry got %s", token)
		case r.URL.Path == "/token":
			http.Redirect(w, r, metadata.URL+"/latest/meta-data/iam/security-credentials/node", http.StatusFound)
		default:
			w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="https://%s/token"`, r.Host))
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))

	_, port, err := net.SplitHostPort(private.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}

	if attacker.Listener, err = (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.2:"+port); err != nil {
		t.Fatal(err)
	}

	attacker.StartTLS()
	t.Cleanup(attacker.Close)

	public, loopback := netip.MustParseAddr("127.0.0.2"), netip.MustParseAddr("127.0.0.1")
	dnstest.StartChanging(t, map[string][]netip.Addr{ // the certificate of httptest has the names under example.com
		"example.com": {public}, "rebinding.example.com": {public, loopback},
	})

	checker := newRegistryChecker(t, attacker)

	for _, host := range []string{"127.0.0.1", "example.com", "rebinding.example.com"} {
		image := net.JoinHostPort(host, port) + "/ocp/release:4.15.0"

		err := checker.Check(t.Context(), image, credentials.DockerConfig{}, "1")
		if err == nil || !strings.Contains(err.Error(), "127.0.0.1, which is not public") || !strings.Contains(err.Error(), "runners.platformNetworks") {
			t.Errorf("%s: error %v, want one that names the address and the setting", host, err)
		}
	}
}

// newRegistryChecker returns the checker of a bridge area that trusts the server, and may reach the network 127.0.0.2/32.
func newRegistryChecker(t *testing.T, server *httptest.Server) *release.Checker {
	t.Helper()

	transports, err := NewTransports(prometheus.NewRegistry(), nil)
	if err != nil {
		t.Fatal(err)
	}

	transports.egress, err = NewEgressPolicy(config.Runners{PlatformNetworks: []string{"127.0.0.2/32"}})
	if err != nil {
		t.Fatal(err)
	}

	transport, err := transports.newRegistryTransport(writeServerCertificate(t, server))
	if err != nil {
		t.Fatal(err)
	}

	return release.New(transport, timing.InstantClock{})
}

// writeServerCertificate writes the certificate of a server to a file, and returns the path.
func writeServerCertificate(t *testing.T, server *httptest.Server) string {
	t.Helper()

	file := filepath.Join(t.TempDir(), "ca.crt")
	must.Do(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}), 0o600))

	return file
}

// TestPlatformWithPrivateCA checks that the operator calls a CI platform whose certificate the CA in
// runners.platformCAFile verifies, and does not call it without this CA.
func TestPlatformWithPrivateCA(t *testing.T) {
	t.Parallel()

	target, err := url.Parse(githubtest.New(t, github.Options{}).URL)
	must.Do(t, err)

	server := httptest.NewTLSServer(httputil.NewSingleHostReverseProxy(target))
	t.Cleanup(server.Close)

	if err := checkPlatform(t, server.URL, writeServerCertificate(t, server)); err != nil {
		t.Error(err)
	}

	if err := checkPlatform(t, server.URL, ""); err == nil || !strings.Contains(err.Error(), "certificate signed by unknown authority") {
		t.Errorf("without the CA, the error is %v", err)
	}

	if err := checkPlatform(t, server.URL, "/nowhere.pem"); err == nil || !strings.Contains(err.Error(), "read runners.platformCAFile: ") {
		t.Errorf("without the file, the error is %v", err)
	}
}

// checkPlatform checks the credentials of a template at a simulated GitHub Enterprise Server, as the operator does.
func checkPlatform(t *testing.T, server, caFile string) error {
	t.Helper()

	transports, err := NewTransports(prometheus.NewRegistry(), func(next http.RoundTripper) http.RoundTripper { return next })
	must.Do(t, err)

	transports.egress, err = NewEgressPolicy(config.Runners{PlatformURLs: []string{server}})
	must.Do(t, err)

	network, err := transports.newPlatformTransport(caFile)
	if err != nil {
		return err
	}

	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "github"}, Data: map[string][]byte{"token": []byte(githubtest.PAT)},
	}
	workloads := &connect.Workloads{
		Platforms: Platforms(), Network: network, Transport: transports.wrapPlatform,
		Secrets: &connect.Secrets{Egress: transports.egress, Reader: fake.NewClientBuilder().WithObjects(secret).Build()},
	}

	template := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "linux"}}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{
		APIURL:      server,
		Credentials: &v1alpha1.SecretValueSource{SecretKeyRef: v1alpha1.SecretKeySelector{Name: "github", Key: "token"}},
	}}

	provider, err := workloads.ProviderFor(t.Context(), template, v1alpha1.Workload{
		Type:   v1alpha1.WorkloadGitHubActions,
		Config: &v1alpha1.WorkloadConfig{GitHub: &v1alpha1.GitHubActionsConfig{Repository: githubtest.Repo}},
	})
	if err != nil {
		return err
	}

	return provider.Validate(t.Context())
}
