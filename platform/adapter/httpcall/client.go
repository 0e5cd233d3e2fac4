// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package httpcall

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

const (
	// MaxBody is the maximum size of a response body, in bytes.
	MaxBody = 4 << 20

	maxRedirects = 5
)

// Types of back-off between attempts.
const (
	Exponential = "exponential"
	Linear      = "linear"
	Constant    = "constant"
)

// Options configure a Client. API is required.
type Options struct {
	// API is the complete configuration of the fleet API. It contains the defaults of all calls.
	API adapter.HyperFleetAPI
	// Transport sends the requests. Default: the transport of kit/bounds.
	Transport http.RoundTripper
	// Calls, if set, counts and times each attempt.
	Calls *metrics.CallMetrics
	// Clock is the clock of the delays between attempts. Default: the real clock.
	Clock clock.Clock
}

// Client sends calls. It is safe for concurrent use.
type Client struct {
	api   adapter.HyperFleetAPI
	base  *url.URL
	http  *http.Client
	clock clock.Clock
	// random returns numbers in [0,1) for the jitter.
	random func() float64
}

// Request is one call with rendered texts.
type Request struct {
	// Method is the HTTP method. Default: GET.
	Method string
	// URL is absolute, or relative to the fleet API's root.
	URL string
	// Header contains the headers of this call.
	Header http.Header
	// Body may be empty. The default Content-Type of a body is application/json.
	Body string
	// Timeout is the timeout of one attempt. Default: the timeout of Options.API.
	Timeout time.Duration
	// Attempts is the maximum number of attempts, at most adapter.MaxAttempts. Default: the number of
	// Options.API.
	Attempts int
	// Backoff is Exponential, Linear or Constant. Default: the back-off of Options.API.
	Backoff string
}

// Response is a response with a status of class 2xx.
type Response struct {
	Status int
	Body   []byte
}

// New creates a client. It returns an error if the base URL of the fleet API is not http or https, or has a
// user, a query or a fragment.
func New(options Options) (*Client, error) {
	base, ok := client.ParseBaseURL(options.API.BaseURL)
	if !ok {
		return nil, errors.New("clients.hyperfleet_api.base_url: want http(s)://HOST:PORT; put the token into the file auth.token_path")
	}

	if base.Path == "" {
		base.Path = "/" // JoinPath would omit the slash
	}

	c := &Client{
		api: options.API, base: base, clock: cmp.Or[clock.Clock](options.Clock, clock.RealClock{}), random: rand.Float64,
	}

	transport, err := c.newTransport(options)
	if err != nil {
		return nil, err
	}

	c.http = &http.Client{Transport: transport, CheckRedirect: checkRedirect}

	return c, nil
}

// transport returns the transport of all attempts. It sends the credentials of the fleet API only to the
// fleet API.
func (c *Client) newTransport(options Options) (http.RoundTripper, error) {
	toAPI, toOthers := options.Transport, options.Transport
	if options.Transport == nil {
		own, err := client.NewNetworkTransport(c.api.CAFile)
		if err != nil {
			return nil, fmt.Errorf("clients.%w", err)
		}

		plain := bounds.NewTransport()
		plain.MaxIdleConnsPerHost = own.MaxIdleConnsPerHost
		own.ResponseHeaderTimeout, plain.ResponseHeaderTimeout = 0, 0 // each attempt has its own timeout

		toAPI, toOthers = bounds.LimitBodies(own), bounds.LimitBodies(plain)
	}

	if options.Calls != nil {
		toAPI = options.Calls.WrapTransport("hyperfleet_api", nil, toAPI)
		toOthers = options.Calls.WrapTransport("api_call", nil, toOthers)
	}

	return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
		if !c.isAPI(r.URL) {
			return toOthers.RoundTrip(r)
		}

		return c.sendToAPI(r, toAPI)
	}), nil
}

// sendToAPI adds the default headers and the token of the fleet API to a request and sends it.
func (c *Client) sendToAPI(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	r = r.Clone(r.Context())

	for name, value := range c.api.DefaultHeaders {
		if r.Header.Get(name) == "" {
			r.Header.Set(name, value)
		}
	}

	if file := c.api.Auth.TokenPath; file != "" && r.Header.Get("Authorization") == "" {
		token, err := client.ReadToken(file)
		if err != nil {
			return nil, err
		}

		r.Header.Set("Authorization", "Bearer "+token)
	}

	return next.RoundTrip(r)
}

// isAPI reports whether a URL has the origin of the fleet API. Other hosts, and other ports of the same host,
// must not get the credentials of the fleet API.
func (c *Client) isAPI(target *url.URL) bool {
	return isSameOrigin(target, c.base)
}

func isSameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host)
}

// checkRedirect permits redirects only to the origin of the first request, because the headers and the body of
// a call are for the server in the task file.
func checkRedirect(next *http.Request, via []*http.Request) error {
	if !isSameOrigin(next.URL, via[0].URL) {
		return http.ErrUseLastResponse
	}

	if len(via) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}

	return nil
}

// Do sends the call, with retries. It returns a *StatusError for a response with a status of another class
// than 2xx. IsTransient reports whether the same call may succeed later.
func (c *Client) Do(ctx context.Context, request Request) (*Response, error) {
	target, err := c.resolve(request.URL)
	if err != nil {
		return nil, err
	}

	request.Method = cmp.Or(request.Method, http.MethodGet)
	request.Timeout = cmp.Or(request.Timeout, c.api.Timeout)
	request.Attempts = min(cmp.Or(request.Attempts, c.api.RetryAttempts), adapter.MaxAttempts)
	request.Backoff = cmp.Or(request.Backoff, c.api.RetryBackoff)

	for attempt := 1; ; attempt++ {
		response, err := c.doOnce(ctx, target, request)
		if err == nil {
			return response, nil
		}

		delay, shouldRetry := c.retryDelay(err, attempt, request)
		if !shouldRetry || ctx.Err() != nil {
			return nil, err
		}

		if retry.Sleep(ctx, c.clock, delay) != nil {
			return nil, err // the error of the attempt has more information than the context's error
		}
	}
}

// doOnce makes one attempt.
func (c *Client) doOnce(ctx context.Context, target *url.URL, request Request) (*Response, error) {
	// The timeout of an attempt uses the real clock, because it limits a connection.
	bounded, cancel := context.WithTimeout(ctx, request.Timeout)
	defer cancel()

	call := request.Method + " " + redactURL(target)

	httpRequest, err := http.NewRequestWithContext(bounded, request.Method, target.String(), strings.NewReader(request.Body))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", call, stripURL(err))
	}

	maps.Copy(httpRequest.Header, request.Header)

	if request.Body != "" && httpRequest.Header.Get("Content-Type") == "" {
		httpRequest.Header.Set("Content-Type", "application/json")
	}

	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(httpRequest.Header))

	response, err := c.http.Do(httpRequest)
	if err != nil {
		return nil, &networkError{call: call, err: stripURL(err)}
	}
	defer response.Body.Close() //nolint:errcheck // the body was read, or is not used

	body, err := io.ReadAll(io.LimitReader(response.Body, MaxBody+1))
	if err != nil {
		return nil, &networkError{call: call, err: fmt.Errorf("read response: %w", stripURL(err))}
	}

	if len(body) > MaxBody {
		return nil, fmt.Errorf("%s: the response is larger than %d bytes", call, MaxBody)
	}

	if response.StatusCode < 200 || response.StatusCode > 299 {
		response.Body = io.NopCloser(bytes.NewReader(body))

		return nil, c.newStatusError(call, target, response)
	}

	return &Response{Status: response.StatusCode, Body: body}, nil
}

// retryDelay returns the delay before the next attempt, and false if the call must not be retried.
func (c *Client) retryDelay(err error, attempt int, request Request) (delay time.Duration, shouldRetry bool) {
	if attempt >= request.Attempts || !IsTransient(err) {
		return 0, false
	}

	delay = c.api.BaseDelay

	switch request.Backoff {
	case Linear:
		delay *= time.Duration(attempt)
	case Exponential:
		delay <<= attempt - 1
	}

	delay = min(delay, c.api.MaxDelay)

	const jitter = 0.1
	delay += time.Duration((2*c.random() - 1) * jitter * float64(delay))

	var status *StatusError
	if errors.As(err, &status) && status.retryAfter > delay {
		// If the server's Retry-After is longer than MaxDelay, only the next event sends the call again.
		return status.retryAfter, status.retryAfter <= c.api.MaxDelay
	}

	return delay, true
}
