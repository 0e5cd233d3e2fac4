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
	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/metrics"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

const (
	// MaxBody of an answer, in bytes.
	MaxBody = 4 << 20

	maxRedirects = 5
)

// How the pauses between tries grow.
const (
	Exponential = "exponential"
	Linear      = "linear"
	Constant    = "constant"
)

// Options of New.
type Options struct {
	// API is the fleet API, complete, and gives the defaults of every call.
	API adapter.HyperFleetAPI
	// Transport of the connections. Default: that of kit/httpbound.
	Transport http.RoundTripper
	// Calls, if there, count and time each try.
	Calls *metrics.Calls
	// Clock of pauses. Default: the real one.
	Clock clock.Clock
}

// Client makes calls. It may be used from any goroutine.
type Client struct {
	api   adapter.HyperFleetAPI
	base  *url.URL
	http  *http.Client
	clock clock.Clock
	// random gives numbers in [0,1) for the jitter.
	random func() float64
}

// Request is one call; its texts are rendered.
type Request struct {
	// Method; empty is GET.
	Method string
	// URL is absolute, or relative to the fleet API's root.
	URL string
	// Header of this call alone.
	Header http.Header
	// Body, possibly empty. A body without a Content-Type is application/json.
	Body string
	// Timeout of one try. Default: that of the API.
	Timeout time.Duration
	// Attempts is how often it is tried, at most adapter.MaxAttempts. Default: that of the API.
	Attempts int
	// Backoff is Exponential, Linear or Constant. Default: that of the API.
	Backoff string
}

// Response is an answer of class 2xx.
type Response struct {
	Status int
	Body   []byte
}

// New checks the options. The fleet API's base URL is http or https, without user,
// query or fragment.
func New(options Options) (*Client, error) {
	base, ok := client.ParseBase(options.API.BaseURL)
	if !ok {
		return nil, errors.New("clients.hyperfleet_api.base_url: write http(s)://HOST:PORT, with the token in auth.token_path")
	}

	if base.Path == "" {
		base.Path = "/" // JoinPath would leave it out
	}

	c := &Client{
		api: options.API, base: base, clock: cmp.Or[clock.Clock](options.Clock, clock.RealClock{}), random: rand.Float64,
	}

	transport, err := c.transport(options)
	if err != nil {
		return nil, err
	}

	c.http = &http.Client{Transport: transport, CheckRedirect: redirect}

	return c, nil
}

// transport adds to the plain one what every try needs.
func (c *Client) transport(options Options) (http.RoundTripper, error) {
	toAPI, toOthers := options.Transport, options.Transport
	if options.Transport == nil {
		own, err := client.Network(c.api.CAFile)
		if err != nil {
			return nil, fmt.Errorf("clients.%w", err)
		}

		plain := httpbound.Plain()
		plain.MaxIdleConnsPerHost = own.MaxIdleConnsPerHost
		own.ResponseHeaderTimeout, plain.ResponseHeaderTimeout = 0, 0 // each try has its own

		toAPI, toOthers = httpbound.Transport(own), httpbound.Transport(plain)
	}

	if options.Calls != nil {
		toAPI = options.Calls.Transport("hyperfleet_api", nil, toAPI)
		toOthers = options.Calls.Transport("api_call", nil, toOthers)
	}

	return retry.RoundTripper(func(r *http.Request) (*http.Response, error) {
		if !c.isAPI(r.URL) {
			return toOthers.RoundTrip(r)
		}

		return c.toAPI(r, toAPI)
	}), nil
}

// toAPI sends what only the fleet API is sent.
func (c *Client) toAPI(r *http.Request, next http.RoundTripper) (*http.Response, error) {
	r = r.Clone(r.Context())

	for name, value := range c.api.DefaultHeaders {
		if r.Header.Get(name) == "" {
			r.Header.Set(name, value)
		}
	}

	if file := c.api.Auth.TokenPath; file != "" && r.Header.Get("Authorization") == "" {
		token, err := client.Token(file)
		if err != nil {
			return nil, err
		}

		r.Header.Set("Authorization", "Bearer "+token)
	}

	return next.RoundTrip(r)
}

// isAPI compares origins: what the fleet API may be told, no other host and no other
// port of the same host may.
func (c *Client) isAPI(target *url.URL) bool {
	return sameOrigin(target, c.base)
}

func sameOrigin(a, b *url.URL) bool { return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host) }

// redirect follows redirects to where the first request went. What a call carries is
// meant for the server that the task file names.
func redirect(next *http.Request, via []*http.Request) error {
	if !sameOrigin(next.URL, via[0].URL) {
		return http.ErrUseLastResponse
	}

	if len(via) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}

	return nil
}

// Do makes the call. An answer of another class than 2xx is a *StatusError; Transient
// tells whether the same call may succeed later.
func (c *Client) Do(ctx context.Context, request Request) (*Response, error) {
	target, err := c.resolve(request.URL)
	if err != nil {
		return nil, err
	}

	request.Method = cmp.Or(request.Method, http.MethodGet)
	request.Timeout = cmp.Or(request.Timeout, c.api.Timeout)
	request.Attempts = min(cmp.Or(request.Attempts, c.api.RetryAttempts), adapter.MaxAttempts)
	request.Backoff = cmp.Or(request.Backoff, c.api.RetryBackoff)

	for try := 1; ; try++ {
		response, err := c.once(ctx, target, request)
		if err == nil {
			return response, nil
		}

		pause, again := c.pause(err, try, request)
		if !again || ctx.Err() != nil {
			return nil, err
		}

		if retry.Pause(ctx, c.clock, pause) != nil {
			return nil, err // it says more than that the time is up
		}
	}
}

// once is one try.
func (c *Client) once(ctx context.Context, target *url.URL, request Request) (*Response, error) {
	// The time of a try is not the injected clock's: it bounds a connection.
	bounded, cancel := context.WithTimeout(ctx, request.Timeout)
	defer cancel()

	where := request.Method + " " + shown(target)

	httpRequest, err := http.NewRequestWithContext(bounded, request.Method, target.String(), strings.NewReader(request.Body))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", where, bare(err))
	}

	maps.Copy(httpRequest.Header, request.Header)

	if request.Body != "" && httpRequest.Header.Get("Content-Type") == "" {
		httpRequest.Header.Set("Content-Type", "application/json")
	}

	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(httpRequest.Header))

	answer, err := c.http.Do(httpRequest)
	if err != nil {
		return nil, &networkError{where: where, err: bare(err)}
	}
	defer answer.Body.Close() //nolint:errcheck // it was read, or is of no use

	read, err := io.ReadAll(io.LimitReader(answer.Body, MaxBody+1))
	if err != nil {
		return nil, &networkError{where: where, err: fmt.Errorf("read the answer: %w", bare(err))}
	}

	if len(read) > MaxBody {
		return nil, fmt.Errorf("%s: the answer is larger than %d bytes", where, MaxBody)
	}

	if answer.StatusCode < 200 || answer.StatusCode > 299 {
		answer.Body = io.NopCloser(bytes.NewReader(read))

		return nil, c.statusError(where, target, answer)
	}

	return &Response{Status: answer.StatusCode, Body: read}, nil
}

// pause says whether to try again, and after how long.
func (c *Client) pause(err error, try int, request Request) (time.Duration, bool) {
	if try >= request.Attempts || !Transient(err) {
		return 0, false
	}

	wait := c.api.BaseDelay

	switch request.Backoff {
	case Linear:
		wait *= time.Duration(try)
	case Exponential:
		wait <<= try - 1
	}

	wait = min(wait, c.api.MaxDelay)

	const jitter = 0.1
	wait += time.Duration((2*c.random() - 1) * jitter * float64(wait))

	var status *StatusError
	if errors.As(err, &status) && status.retryAfter > wait {
		// A server that wants to be left alone for longer than is waited here is asked
		// again with the next event.
		return status.retryAfter, status.retryAfter <= c.api.MaxDelay
	}

	return wait, true
}
