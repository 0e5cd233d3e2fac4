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
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

// maxIdle connections are kept for the next calls: several are made at once.
const maxIdle = 32

// newTransport gives the chain that a call goes through: header, tries, timeout of a
// try, count, network.
func newTransport(conf platform.APIClient, options Options) (http.RoundTripper, error) {
	next := options.Transport
	if next == nil {
		network, err := Network(conf.CAFile)
		if err != nil {
			return nil, err
		}

		next = network
	}

	if options.Calls != nil {
		next = options.Calls.Transport("hyperfleet-api", operation, next)
	}

	options.Clock = cmp.Or[clock.Clock](options.Clock, clock.RealClock{})
	options.UserAgent = cmp.Or(options.UserAgent, "hyperfleet")
	conf.Timeout = cmp.Or(max(conf.Timeout, 0), defaultTimeout)

	// All that this client asks may be asked again: reads, reports that carry the time
	// they speak of, and leases of one holder.
	again := retry.Transport(limiting(next, conf.Timeout), options.Clock, func(*http.Request) bool { return true })

	return heading(again, conf.TokenFile, options), nil
}

// Network makes connections to a fleet API, whose certificate is by an authority of the file,
// if there is one.
func Network(caFile string) (*http.Transport, error) {
	network := httpbound.Plain()
	network.MaxIdleConnsPerHost = maxIdle

	if caFile == "" {
		return network, nil
	}

	var err error
	if network.TLSClientConfig, err = httpbound.Trusting(caFile, nil); err != nil {
		return nil, fmt.Errorf("hyperfleet_api.ca_file: %w", err)
	}

	return network, nil
}

// heading says who calls, in which trace. The token is read each time: it is renewed in
// its file.
func heading(next http.RoundTripper, tokenFile string, options Options) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		r = r.Clone(r.Context())

		for name, value := range options.Headers {
			r.Header.Set(name, value)
		}

		r.Header.Set("User-Agent", options.UserAgent)
		r.Header.Set("Accept", "application/json, application/problem+json")
		propagation.TraceContext{}.Inject(r.Context(), propagation.HeaderCarrier(r.Header))

		if tokenFile != "" {
			token, err := Token(tokenFile)
			if err != nil {
				return nil, err
			}

			r.Header.Set("Authorization", "Bearer "+token)
		}

		return next.RoundTrip(r)
	})
}

// Token reads the token for the fleet API, which is one line.
func Token(file string) (string, error) {
	token, err := log.ReadSecret(file)
	if err == nil && strings.ContainsAny(token.Reveal(), "\r\n") {
		err = fmt.Errorf("%s has more than one line", file)
	}

	if err != nil {
		return "", fmt.Errorf("hyperfleet_api.token_file: %w", err)
	}

	return token.Reveal(), nil
}

type waitKey struct{}

// withWait allows the answer to come that much later.
func withWait(ctx context.Context, wait time.Duration) context.Context {
	return context.WithValue(ctx, waitKey{}, wait)
}

// limiting ends a try after the timeout, the reading of its body included.
func limiting(next http.RoundTripper, timeout time.Duration) http.RoundTripper {
	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		wait, _ := r.Context().Value(waitKey{}).(time.Duration)

		ctx, cancel := context.WithTimeoutCause(r.Context(), timeout+wait,
			fmt.Errorf("no answer within %s: %w", timeout+wait, context.DeadlineExceeded))

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

// cancelBody ends the try's context with its body.
type cancelBody struct {
	io.ReadCloser

	cancel context.CancelFunc
}

// Close closes the body.
func (b *cancelBody) Close() error {
	defer b.cancel()

	return b.ReadCloser.Close()
}

// operation names a call for the metrics, without ids.
func operation(r *http.Request) string {
	_, route, _ := strings.Cut(r.URL.Path, BasePath+"/")

	switch first, rest, below := strings.Cut(route, "/"); {
	case first == "changes", first == "leases":
		return first
	case !below:
		return "list"
	case strings.HasSuffix(rest, "/statuses"):
		return strings.ToLower(r.Method) + "-status"
	default:
		return strings.ToLower(r.Method)
	}
}
