// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// maxIdleConns is the number of idle connections that are kept, because several requests run at the
// same time.
const maxIdleConns = 32

// newTransport returns the chain of transports of a request: headers, retries, the timeout of an
// attempt, metrics, and the network.
func newTransport(conf platform.APIClient, options Options) (http.RoundTripper, error) {
	next := options.Transport
	if next == nil {
		network, err := NewNetworkTransport(conf.CAFile)
		if err != nil {
			return nil, err
		}

		next = network
	}

	if options.Calls != nil {
		next = options.Calls.WrapTransport("hyperfleet-api", operationName, next)
	}

	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})
	options.UserAgent = cmp.Or(options.UserAgent, "hyperfleet")
	conf.Timeout = cmp.Or(max(conf.Timeout, 0), DefaultTimeout)

	// Every request of this client may be repeated: reads, reports that have an observed_time,
	// and leases of one holder.
	retrying := retry.NewTransport(newTimeoutTransport(next, conf.Timeout), options.Clock, func(*http.Request) bool { return true })

	return newHeaderTransport(retrying, conf.TokenFile, options), nil
}

// NewNetworkTransport returns a transport for connections to a fleet API. If caFile is not empty,
// the API's certificate has to be signed by a CA in that file.
func NewNetworkTransport(caFile string) (*http.Transport, error) {
	network := bounds.NewTransport()
	network.MaxIdleConnsPerHost = maxIdleConns
	// In a cluster, compression takes longer than the transfer.
	network.DisableCompression = true

	if caFile == "" {
		return network, nil
	}

	if err := bounds.TrustFile(network, caFile, nil); err != nil {
		return nil, fmt.Errorf("hyperfleet_api.ca_file: %w", err)
	}

	return network, nil
}

// newHeaderTransport adds the headers, the token and the trace context to each request. It reads
// the token for every request, because the file changes when the token is renewed.
func newHeaderTransport(next http.RoundTripper, tokenFile string, options Options) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())

		for name, value := range options.Headers {
			r.Header.Set(name, value)
		}

		r.Header.Set("User-Agent", options.UserAgent)
		r.Header.Set("Accept", "application/json, application/problem+json")
		propagation.TraceContext{}.Inject(r.Context(), propagation.HeaderCarrier(r.Header))

		if tokenFile != "" {
			token, err := ReadToken(tokenFile)
			if err != nil {
				return nil, err
			}

			r.Header.Set("Authorization", "Bearer "+token)
		}

		return next.RoundTrip(r)
	})
}

// ReadToken reads the token for the fleet API from a file, which must have only one line.
func ReadToken(file string) (string, error) {
	token, err := log.ReadSecretFile(file)
	if err == nil && strings.ContainsAny(token.Reveal(), "\r\n") {
		err = fmt.Errorf("%s has more than one line", file)
	}

	if err != nil {
		return "", fmt.Errorf("hyperfleet_api.token_file: %w", err)
	}

	return token.Reveal(), nil
}

type waitKey struct{}

// withWait extends the timeout of a request by the time for which the API lets it wait.
func withWait(ctx context.Context, wait time.Duration) context.Context {
	return context.WithValue(ctx, waitKey{}, wait)
}

// newTimeoutTransport limits an attempt, including the reading of its body, to the timeout.
func newTimeoutTransport(next http.RoundTripper, timeout time.Duration) http.RoundTripper {
	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		wait, _ := r.Context().Value(waitKey{}).(time.Duration)

		ctx, cancel := context.WithTimeoutCause(r.Context(), timeout+wait,
			fmt.Errorf("no response within %s: %w", timeout+wait, context.DeadlineExceeded))

		resp, err := next.RoundTrip(r.WithContext(ctx))
		if err != nil {
			defer cancel()

			if cause := context.Cause(ctx); errors.Is(err, context.DeadlineExceeded) && cause != nil {
				err = cause
			}

			return nil, err
		}

		resp.Body = &cancelBody{ReadCloser: resp.Body, cancel: cancel}

		return resp, nil
	})
}

// cancelBody cancels the context of the attempt when the body is closed.
type cancelBody struct {
	io.ReadCloser

	cancel context.CancelFunc
}

// Close closes the body and cancels the context.
func (b *cancelBody) Close() error {
	defer b.cancel()

	return b.ReadCloser.Close()
}

// operationName returns the name of a request in the metrics, without IDs.
func operationName(r *http.Request) string {
	_, route, _ := strings.Cut(r.URL.Path, BasePath+"/")

	switch first, rest, hasRest := strings.Cut(route, "/"); {
	case first == "changes", first == "leases":
		return first
	case !hasRest:
		return "list"
	case strings.HasSuffix(rest, "/statuses"):
		return strings.ToLower(r.Method) + "-status"
	default:
		return strings.ToLower(r.Method)
	}
}
