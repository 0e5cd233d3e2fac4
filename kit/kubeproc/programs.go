// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeproc

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"strconv"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

const (
	probeTimeout = 5 * time.Second
	issuer       = "https://kubernetes.default.svc"
)

var errNotReady = errors.New("not ready")

func etcdArgs(dataDir, clientURL, peerURL string) []string {
	return []string{
		"--data-dir=" + dataDir,
		"--listen-client-urls=" + clientURL, "--advertise-client-urls=" + clientURL,
		"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL,
		"--initial-cluster=default=" + peerURL,
		// The data is not needed after the control plane stops.
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}

func apiserverArgs(dir, etcdURL string, port int) []string {
	file := func(name string) string { return filepath.Join(dir, name) }

	return []string{
		"--etcd-servers=" + etcdURL,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		// A loopback address cannot be an endpoint of the kubernetes Service.
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=" + file("server.crt"), "--tls-private-key-file=" + file("server.key"),
		"--client-ca-file=" + file(caCert),
		"--service-account-issuer=" + issuer,
		"--service-account-key-file=" + file("sa.pub"), "--service-account-signing-key-file=" + file("sa.key"),
		"--service-cluster-ip-range=10.96.0.0/16",
		"--authorization-mode=Node,RBAC",
		// No pod runs in this cluster, and pods must not be rejected because their service account is missing.
		"--disable-admission-plugins=ServiceAccount",
		// OpenShift enables this plugin: setting blockOwnerDeletion requires permission to update the
		// owner's finalizers.
		"--enable-admission-plugins=OwnerReferencesPermissionEnforcement,NodeRestriction",
		"--allow-privileged=true",
		"--profiling=false",
	}
}

func controllerArgs(dir, kubeconfig string, port int) []string {
	file := func(name string) string { return filepath.Join(dir, name) }

	return []string{
		"--kubeconfig=" + kubeconfig,
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
		"--bind-address=127.0.0.1", "--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + file("server.crt"), "--tls-private-key-file=" + file("server.key"),
		"--controllers=garbage-collector-controller,namespace-controller,serviceaccount-controller," +
			"certificatesigningrequest-signing-controller,resourcequota-controller",
		"--cluster-signing-cert-file=" + file(caCert), "--cluster-signing-key-file=" + file(caKey),
		"--leader-elect=false",
		"--profiling=false",
	}
}

func probeHTTP(ctx context.Context, url string) error {
	return probe(ctx, &http.Client{Timeout: probeTimeout}, url)
}

func (c *Cluster) probeTLS(ctx context.Context, url string) error {
	roots := x509.NewCertPool()
	roots.AddCert(c.ca.cert)

	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}
	defer transport.CloseIdleConnections()

	return probe(ctx, &http.Client{Timeout: probeTimeout, Transport: transport}, url)
}

func probe(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return fmt.Errorf("get %s: %w", url, err)
	}

	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close() //nolint:errcheck // the body was not read

	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("get %s: %s: %w", url, response.Status, errNotReady)
	}

	return nil
}

// probeReady returns an error until the API server is ready, including its bootstrap RBAC policy.
func probeReady(ctx context.Context, config *rest.Config) error {
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("get readyz of %s: %w", config.Host, err)
	}

	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()

	if err := client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error(); err != nil {
		return fmt.Errorf("get readyz of %s: %w", config.Host, err)
	}

	return nil
}
