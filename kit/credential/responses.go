// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"net/http"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// MaxResponseBytes is the maximum size of a response of a cluster that is not a watch. A list of
	// ten thousand machines has about a hundred million bytes.
	MaxResponseBytes = 128 << 20

	// pingInterval and pingTimeout are the same as in client-go. HTTP/2 pings detect connections to
	// unreachable servers.
	pingInterval, pingTimeout = 30 * time.Second, 15 * time.Second
)

// LimitResponses limits each response of the cluster to MaxResponseBytes after decompression. It
// does not limit watches, which have no end. client-go limits each event of a watch.
func LimitResponses(config *rest.Config) {
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		bounded := bounds.LimitBodiesTo(next, MaxResponseBytes)

		return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
			if IsWatch(r) {
				return next.RoundTrip(r)
			}

			return bounded.RoundTrip(r)
		})
	})
}

// IsWatch returns whether a request to an API server is a watch.
func IsWatch(r *http.Request) bool { return r.URL.Query().Get("watch") != "" }

// setTransport sets a transport with its own connections and a limit on response headers, which
// client-go's transport does not have. The configuration must not refer to files.
func setTransport(config *rest.Config) error {
	tls, err := rest.TLSConfigFor(config)
	if err != nil {
		return errCertificates
	}

	// Set the scheme now. After TLSClientConfig is cleared, a server without a scheme would default to
	// http.
	server, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return errServer
	}

	transport := bounds.NewTransport()
	transport.TLSClientConfig = tls
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingInterval, PingTimeout: pingTimeout}

	if config.Proxy != nil {
		transport.Proxy = config.Proxy
	}

	config.Host, config.Transport, config.TLSClientConfig = server.String(), transport, rest.TLSClientConfig{}

	return nil
}
