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

// root is the repository's folder.
const root = "../../.."

// hostInside is the host's loopback address as machines see it (QEMU's user network).
const hostInside = "10.0.2.2"

// inside is a loopback address of the host as machines see it.
func inside(t testing.TB, address string) string {
	t.Helper()

	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}

	return net.JoinHostPort(hostInside, port)
}

// Operator is the operator's program.
type Operator struct {
	dir, address string
	ca           []byte
	process      *procrun.Process
}

// StartOperator starts the program with a certificate for the address that machines know,
// and lets the fleet's webhooks through to it.
func StartOperator(t testing.TB, f *fleet.Fleet, server *spire.Server, logs string) *Operator {
	t.Helper()

	o := &Operator{dir: t.TempDir(), address: loopback.Address(t)}
	o.certify(t)
	o.write(t, f, server)

	process, err := procrun.Start(t.Context(), procrun.Spec{
		Path: o.binary(t), Dir: o.dir, LogPath: filepath.Join(logs, "operator.log"),
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

func (o *Operator) path(name string) string { return filepath.Join(o.dir, name) }

func (o *Operator) binary(t testing.TB) string {
	t.Helper()

	path, err := filepath.Abs(filepath.Join(root, "bin", "hyperfleet"))
	if err == nil {
		_, err = os.Stat(path)
	}

	if err != nil {
		t.Fatalf("find the operator: %v: run make build", err)
	}

	return path
}

// write writes down the operator's configuration: its intervals are those of production.
func (o *Operator) write(t testing.TB, f *fleet.Fleet, server *spire.Server) {
	t.Helper()

	text, err := yaml.Marshal(map[string]any{
		"apiVersion": config.APIVersion, "kind": config.KindOperatorConfig,
		"operatorUID": f.OperatorUID, "namespace": f.Namespace,
		"controllers":    []string{config.AreaRunners}, // as deploy/ has it
		"log":            map[string]any{"level": "INFO", "format": "text"},
		"metrics":        map[string]any{"bindAddress": "0"},
		"health":         map[string]any{"bindAddress": "0"},
		"webhooks":       map[string]any{"bindAddress": o.address, "certFile": o.path("tls.crt"), "keyFile": o.path("tls.key")},
		"guest":          map[string]any{"url": "https://" + inside(t, o.address), "caFile": o.path("tls.crt")},
		"leaderElection": map[string]any{"enabled": false},
		"runners":        map[string]any{"platformURLs": f.Runners.PlatformURLs},
		"identity": map[string]any{"spire": map[string]any{
			"address": "unix://" + server.Socket, "trustDomain": server.TrustDomain,
			"machineAddress": inside(t, server.Address),
		}},
	})
	if err != nil {
		t.Fatal(err)
	}

	save(t, o.path("operator.yaml"), text)
}

// certify makes the certificate of the operator's server.
func (o *Operator) certify(t testing.TB) {
	t.Helper()

	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}

	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "operator"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.ParseIP(hostInside), net.IPv4(127, 0, 0, 1)},
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
	save(t, o.path("tls.crt"), o.ca)
	save(t, o.path("tls.key"), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER}))
}

func save(t testing.TB, path string, content []byte) {
	t.Helper()

	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Forge is the address of the simulated GitHub for the operator. GitHub tells runners the
// name that it was called by; here that has to be the one by which machines reach it.
func Forge(t testing.TB, f *fleet.Fleet) string {
	t.Helper()

	target, err := url.Parse(f.GitHub.URL)
	if err != nil {
		t.Fatal(err)
	}

	name := inside(t, target.Host)
	server := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = name
	}})
	t.Cleanup(server.Close)

	f.Runners.PlatformURLs = append(f.Runners.PlatformURLs, server.URL)

	return strings.TrimSuffix(server.URL, "/")
}
