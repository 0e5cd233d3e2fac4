// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeconfig

import (
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// MaxAnswer is the most bytes of one answer of a cluster that is no watch: a list of ten thousand
	// machines has some hundred million.
	MaxAnswer = 128 << 20

	// As client-go has them: a connection whose other end is gone is noticed, whatever waits on it.
	pingAfter, pingTimeout = 30 * time.Second, 15 * time.Second
)

// Bound has each answer of the cluster that a configuration leads to be of at most MaxAnswer bytes,
// decompressed. A watch has no end; client-go bounds each of its events.
func Bound(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		bounded := httpbound.Within(next, MaxAnswer)

		return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
			if Watches(r) {
				return next.RoundTrip(r)
			}

			return bounded.RoundTrip(r)
		})
	})
}

// Watches says whether a call to an API server is a watch.
func Watches(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// connected gives a configuration, which names no files, connections of its own, whose answers'
// headers are bounded: those of client-go have none.
func connected(config *rest.Config) error {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return errCertificates
	}

	// Without TLS settings it would be http where the server has no scheme.
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return errServer
	}

	transport := httpbound.Plain()
	transport.TLSClientConfig = tls
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}

	if config.Proxy != nil {
		transport.Proxy = config.Proxy
	}

	config.Host, config.Transport, config.TLSClientConfig = server.String(), transport, rest.TLSClientConfig{}

	return nil
}
