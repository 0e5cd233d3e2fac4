// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package install_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/test/kube"
	"github.com/hyperfleet/hyperfleet/test/kubelet"
)

const (
	tlsPage = root + "docs/operate/tls.md"
	// serviceName is the DNS name of the receiver's Service.
	serviceName = "hyperfleet-webhooks." + defaultNamespace + ".svc"
)

// newTransport returns a transport that trusts the bundle, and expects this server name.
func newTransport(bundle []byte, name string) *http.Transport {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)

	return &http.Transport{
		DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12},
	}
}

// newOperatorProxy returns a proxy to an operator that verifies the operator's certificate with its own authority.
func newOperatorProxy(t *testing.T, env *kube.Env, address string) http.Handler {
	t.Helper()

	var authority corev1.Secret
	if err := env.Client.Get(t.Context(), client.ObjectKey{Namespace: defaultNamespace, Name: "hyperfleet-webhooks-ca"}, &authority); err != nil {
		t.Fatal(err)
	}

	proxy := httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "https", Host: address})
	proxy.Transport = newTransport(authority.Data["tls.crt"], serviceName)

	return proxy
}

// sendReport sends a machine's report, and returns the status of the response.
func sendReport(t *testing.T, pod *kubelet.Pod, scheme string, transport *http.Transport) (int, error) {
	t.Helper()

	caller := &http.Client{Transport: transport, Timeout: time.Minute}

	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost,
		scheme+"://"+pod.Ports["8443"]+"/machines/ci/claim/uid/report", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}

	response, err := caller.Do(request)
	if err != nil {
		return 0, err
	}

	return response.StatusCode, response.Body.Close()
}

// waitUntilReady waits until a pod is ready.
func waitUntilReady(t *testing.T, pod *kubelet.Pod) {
	t.Helper()

	for deadline := time.Now().Add(waitTimeout); !pod.IsReady(t.Context()); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the pod is not ready:\n%s", pod.Log(t))
		}
	}
}

// installRunners returns a user who has installed the operator of runners, and its pod.
func installRunners(t *testing.T) (*user, *kubelet.Pod) {
	t.Helper()

	env := kube.Start(t)
	u := newUser(t, env, "")
	u.runCommands(readTutorialBlocks(t)[0])

	pod := runDeployment(t, env, defaultNamespace, "hyperfleet-runners")
	waitUntilReady(t, pod)

	return u, pod
}

// TestOwnAuthority checks that with the default settings the operator serves TLS with a certificate of its own
// authority, and does not serve plain HTTP.
func TestOwnAuthority(t *testing.T) {
	t.Parallel()

	u, pod := installRunners(t)
	u.runCommands(readAllBlocks(t, tlsPage)[0])

	authority, err := os.ReadFile(filepath.Join(u.dir, "hyperfleet-ca.crt"))
	u.must(err)

	if code, err := sendReport(t, pod, "https", newTransport(authority, serviceName)); err != nil || code != http.StatusUnauthorized {
		t.Errorf("report with an invalid token by a machine that trusts the authority: %d, %v, want 401", code, err)
	}

	if _, err := sendReport(t, pod, "https", newTransport(nil, serviceName)); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("report by a machine that does not trust the authority: error %v", err)
	}

	if code, err := sendReport(t, pod, "http", newTransport(nil, serviceName)); err == nil && code != http.StatusBadRequest {
		t.Errorf("report over plain HTTP: %d, want 400", code)
	}

	if output := u.runCommands("hyperfleet doctor\n"); !strings.Contains(output, "webhooks and machines: the operator serves TLS") {
		t.Errorf("doctor does not report that the operator serves TLS:\n%s", output)
	}
}

// newCertificate returns another authority's certificate for example.com, and its key.
func newCertificate(t *testing.T) ([]byte, []byte) {
	t.Helper()

	server := httptest.NewTLSServer(http.NotFoundHandler())
	defer server.Close()

	key, err := x509.MarshalPKCS8PrivateKey(server.TLS.Certificates[0].PrivateKey)
	if err != nil {
		t.Fatal(err)
	}

	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})
}

// TestGivenCertificate checks that the operator serves the certificate of a Secret with the overlay or the values
// of the page, and that cert-manager creates the Secret if the values say so.
func TestGivenCertificate(t *testing.T) {
	t.Parallel()

	env := kube.Start(t)
	u := newUser(t, env, "")

	page, err := os.ReadFile(tlsPage)
	u.must(err)

	shown := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllStringSubmatch(string(page), -1)
	if len(shown) != 5 {
		t.Fatalf("the page shows %d files, want 5: adapt this test to the page", len(shown))
	}

	checkout, err := filepath.Abs(root)
	u.must(err)
	u.must(os.Symlink(checkout, filepath.Join(u.dir, "hyperfleet")))
	u.must(os.Mkdir(filepath.Join(u.dir, "overlay"), 0o700))
	u.writeFile("overlay/kustomization.yaml", shown[1][1])
	u.runCommands("kubectl apply --server-side -k overlay\n")

	certificate, key := newCertificate(t)
	u.must(env.Client.Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: defaultNamespace, Name: "hyperfleet-webhooks-tls"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{"tls.crt": certificate, "tls.key": key, "ca.crt": certificate},
	}))

	pod := runDeployment(t, env, defaultNamespace, "hyperfleet-runners")
	waitUntilReady(t, pod)

	if code, err := sendReport(t, pod, "https", newTransport(certificate, "example.com")); err != nil || code != http.StatusUnauthorized {
		t.Errorf("report by a machine that trusts the certificate: %d, %v, want 401", code, err)
	}

	u.writeFile("values.yaml", shown[0][1])

	output := u.runCommands("helm template hyperfleet hyperfleet-0.1.0.tgz --namespace " + otherNamespace + " --values values.yaml\n")
	for _, want := range []string{
		"certFile: /etc/hyperfleet-webhooks/tls.crt", "keyFile: /etc/hyperfleet-webhooks/tls.key", "caFile: /etc/hyperfleet-webhooks/ca.crt",
		"mountPath: /etc/hyperfleet-webhooks", "secretName: hyperfleet-webhooks-tls", "kind: Certificate", "name: internal",
	} {
		if !strings.Contains(output, want) {
			t.Errorf("the values on the page do not result in %s", want)
		}
	}

	u.writeFile("platform-ca.yaml", shown[3][1])

	output = u.runCommands("helm template hyperfleet hyperfleet-0.1.0.tgz --values platform-ca.yaml\n")
	for _, want := range []string{"platformCAFile: /etc/platform-ca/ca.crt", "mountPath: /etc/platform-ca", "name: platform-ca"} {
		if !strings.Contains(output, want) {
			t.Errorf("the values for a private CA on the page do not result in %s", want)
		}
	}

	for value, want := range map[string]bool{"ingress.enabled=true,ingress.host=h": true, "ingress.enabled=true,ingress.host=h,tls.secret=given": false, "tls=null": false} {
		output := u.runCommands("helm template hyperfleet hyperfleet-0.1.0.tgz --set " + value + "\n")
		if strings.Contains(output, "plainHTTP: true") != want {
			t.Errorf("%s: plain HTTP is %t, want the opposite", value, !want)
		}
	}
}
