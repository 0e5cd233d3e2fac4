// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package ignition

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/bounds"

	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const callTimeout = 30 * time.Second

// Client fetches ignition from HyperShift's ignition servers. It is safe for concurrent use.
type Client struct {
	// WrapTransport wraps the transports, for example for metrics. It may be nil.
	WrapTransport func(http.RoundTripper) http.RoundTripper
	// Clock is the clock for retries. It is required.
	Clock clock.Clock
}

// Fetch returns the ignition of a source. It retries failed requests and does not follow redirects.
// Errors never contain the token.
func (c *Client) Fetch(ctx context.Context, source Source) ([]byte, error) {
	roots, err := bounds.ParseCABundle(source.CABundle, nil)
	if err != nil {
		return nil, fmt.Errorf("fetch ignition: parse CA bundle of the server in the user data: %w", err)
	}

	baseTransport := bounds.NewTransport()
	baseTransport.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	baseTransport.Proxy = nil // the server runs in the management cluster

	defer baseTransport.CloseIdleConnections()

	var transport http.RoundTripper = baseTransport
	if c.WrapTransport != nil {
		transport = c.WrapTransport(transport)
	}

	isIdempotent := func(*http.Request) bool { return true }
	// The client does not follow redirects, so that the token is sent to no other server.
	client := &http.Client{
		Transport: retry.NewTransport(bounds.LimitBodies(transport), c.Clock, isIdempotent), Timeout: callTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, source.URL, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("fetch ignition: %w", err)
	}

	request.Header = source.Header.Clone()

	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("fetch ignition: %w", err)
	}
	defer response.Body.Close() //nolint:errcheck // the body was read

	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("fetch ignition: %s responded with status %s", request.URL.Host, response.Status)
	}

	body, err := io.ReadAll(io.LimitReader(response.Body, maxWorkerBytes+1))
	if err == nil {
		err = bounds.CheckSize(body, maxWorkerBytes)
	}

	if err != nil {
		return nil, fmt.Errorf("read ignition from %s: %w", request.URL.Host, err)
	}

	return body, nil
}
