// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/procrun"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/loopback"
	"github.com/hyperfleet/hyperfleet/test/spire"
)

// root is the root directory of the repository.
const root = "../../.."

// guestHostIP is the address by which guests reach the host's loopback interface (QEMU's user network).
const guestHostIP = "10.0.2.2"

// guestAddress converts a host:port of the host's loopback interface to the address by which guests reach it.
func guestAddress(t testing.TB, address string) string {
	t.Helper()

	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}

	return net.JoinHostPort(guestHostIP, port)
}

// Operator runs the operator's program.
type Operator struct {
	dir, address string
	ca           []byte
	process      *procrun.Process
}

// StartOperator starts the operator's program until the test ends. The program has a certificate for the
// address by which guests reach it. The fleet's Front forwards webhooks to the program. If server is nil, machines
// cannot attest.
func StartOperator(t testing.TB, f *fleet.Fleet, server *spire.Server, logs string) *Operator {
	t.Helper()

	o := &Operator{dir: t.TempDir(), address: loopback.Address(t)}
	o.createCertificate(t)
	o.writeConfig(t, f, server)

	process, err := procrun.Start(t.Context(), procrun.Spec{
		Path: o.findBinary(t), Dir: o.dir, LogPath: filepath.Join(logs, "operator.log"),
		Args: []string{"operator", "--config", o.path("operator.yaml"), "--kubeconfig", f.Env.Kubeconfig(t, f.Env.Config)},
		Env:  []string{"HOME=" + o.dir, "PATH=" + os.Getenv("PATH")},
	})
	if err != nil {
		t.Fatal(err)
	}

	o.process = process
	t.Cleanup(func() {
		if err := process.Stop(); err != nil {
			t.Errorf("stop operator: %v", err)
		}
	})

	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(o.ca)
	f.Front.Serve(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(&url.URL{Scheme: "https", Host: o.address}) },
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, ForceAttemptHTTP2: true,
		},
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		},
	})

	return o
}

// ServerFlags returns the flags with which commands reach the operator without the API server.
func (o *Operator) ServerFlags() string {
	return "--server https://" + o.address + " --server-ca " + o.path("tls.crt")
}

func (o *Operator) path(name string) string { return filepath.Join(o.dir, name) }

func (o *Operator) findBinary(t testing.TB) string {
	t.Helper()

	path, err := filepath.Abs(filepath.Join(root, "bin", "hyperfleet"))
	if err == nil {
		_, err = os.Stat(path)
	}

	if err != nil {
		t.Fatalf("find the operator's program: %v: run make build", err)
	}

	return path
}

// writeConfig writes the operator's configuration, with the default intervals as in production.
func (o *Operator) writeConfig(t testing.TB, f *fleet.Fleet, server *spire.Server) {
	t.Helper()

	settings := map[string]any{
		"apiVersion": config.APIVersion, "kind": config.KindOperatorConfig,
		"operatorUID": f.OperatorUID, "namespace": f.Namespace,
		"controllers":    []string{config.AreaRunners}, // as deploy/ has it
		"log":            map[string]any{"level": "INFO", "format": "text"},
		"metrics":        map[string]any{"bindAddress": "0"},
		"health":         map[string]any{"bindAddress": "0"},
		"webhooks":       map[string]any{"bindAddress": o.address, "certFile": o.path("tls.crt"), "keyFile": o.path("tls.key")},
		"guest":          map[string]any{"url": "https://" + guestAddress(t, o.address), "caFile": o.path("tls.crt")},
		"leaderElection": map[string]any{"enabled": false},
		"runners":        map[string]any{"platformURLs": f.Runners.PlatformURLs},
	}

	if server != nil {
		settings["identity"] = map[string]any{"spire": map[string]any{
			"address": "unix://" + server.Socket, "trustDomain": server.TrustDomain,
			"machineAddress": guestAddress(t, server.Address),
		}}
	}

	text, err := yaml.Marshal(settings)
	if err != nil {
		t.Fatal(err)
	}

	writeFile(t, o.path("operator.yaml"), text)
}

// createCertificate creates a self-signed certificate for the operator's server.
func (o *Operator) createCertificate(t testing.TB) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "operator"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.ParseIP(guestHostIP), net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
	}

	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}

	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}

	o.ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	writeFile(t, o.path("tls.crt"), o.ca)
	writeFile(t, o.path("tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func writeFile(t testing.TB, path string, content []byte) {
	t.Helper()

	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// StartForgeProxy starts a proxy to the simulated GitHub, and returns its URL for the operator. GitHub sends
// runners the host name of the request. The proxy sets it to the name by which guests reach GitHub.
func StartForgeProxy(t testing.TB, f *fleet.Fleet) string {
	t.Helper()

	target, err := url.Parse(f.GitHub.URL)
	if err != nil {
		t.Fatal(err)
	}

	name := guestAddress(t, target.Host)
	server := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = name
	}})
	t.Cleanup(server.Close)

	f.Runners.PlatformURLs = append(f.Runners.PlatformURLs, server.URL)

	return strings.TrimSuffix(server.URL, "/")
}
