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

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/inputbound"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const callTimeout = 30 * time.Second

// Client asks HyperShift's ignition servers. It is safe for use by many.
type Client struct {
	// Wrap wraps the transports, such as for metrics; may be nil.
	Wrap func(http.RoundTripper) http.RoundTripper
	// Clock tells the time. Required.
	Clock clock.Clock
}

// Fetch gives the ignition of a source. Errors name no token.
func (c *Client) Fetch(ctx context.Context, from Source) ([]byte, error) {
	roots, err := inputbound.Authorities(from.Authorities, nil)
	if err != nil {
		return nil, fmt.Errorf("ask for ignition: read the authority of the server in the user data: %w", err)
	}

	plain := httpbound.Plain()
	plain.TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}
	plain.Proxy = nil // the server is the management cluster's own

	defer plain.CloseIdleConnections()

	var transport http.RoundTripper = plain
	if c.Wrap != nil {
		transport = c.Wrap(transport)
	}

	idempotent := func(*http.Request) bool { return true }
	client := &http.Client{
		Transport: retry.Transport(httpbound.Transport(transport), c.Clock, idempotent), Timeout: callTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }, // the token goes nowhere else
	}

	request, err := http.NewRequestWithContext(ctx, http.MethodGet, from.URL, http.NoBody)
	if err != nil {
		return nil, fmt.Errorf("ask for ignition: %w", err)
	}

	request.Header = from.Header.Clone()

	answer, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("ask for ignition: %w", err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read

	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask for ignition: %s answers %s", request.URL.Host, answer.Status)
	}

	body, err := io.ReadAll(io.LimitReader(answer.Body, maxWorker+1))
	if err == nil {
		err = inputbound.Text(body, maxWorker)
	}

	if err != nil {
		return nil, fmt.Errorf("read ignition of %s: %w", request.URL.Host, err)
	}

	return body, nil
}
