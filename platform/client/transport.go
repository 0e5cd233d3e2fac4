// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"strings"
	"time"

	"go.opentelemetry.io/otel/propagation"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/retry"
)

const (
	// maxIdleConns is the number of idle connections to a server that are kept, because several requests run at
	// the same time.
	maxIdleConns = 32
	maxRedirects = 5
)

// Types of back-off between attempts.
const (
	Exponential = "exponential"
	Linear      = "linear"
	Constant    = "constant"
)

// Policy says how often a request is sent, and after which delays.
type Policy struct {
	// Attempts is the maximum number of attempts.
	Attempts int
	// Backoff is Exponential, Linear or Constant.
	Backoff string
	// BaseDelay is the delay before the second attempt, and MaxDelay the maximum delay.
	BaseDelay, MaxDelay time.Duration
}

// ownPolicy is the policy of all requests except those of Call. Each of them may be repeated: reads, reports that have
// an observed_time, and leases of one holder.
func ownPolicy() Policy {
	return Policy{Attempts: 3, Backoff: Exponential, BaseDelay: 200 * time.Millisecond, MaxDelay: time.Second}
}

// exchange is one request with its limits.
type exchange struct {
	// description is the prefix of errors.
	description string
	method      string
	target      *url.URL
	header      http.Header
	body        string
	// timeout limits an attempt, including the reading of the response.
	timeout time.Duration
	policy  Policy
	// maxBody is the maximum size of the response in bytes.
	maxBody int64
	// isCall is true for a request of Call.
	isCall bool
}

// newHTTPClients creates the clients for the fleet API and for other servers. Only the API's certificate can be signed
// by the CA of the configuration.
func (c *Client) newHTTPClients(caFile string) error {
	toAPI, toOthers := c.options.Transport, c.options.Transport

	if c.options.Transport == nil {
		own, others := bounds.NewTransport(), bounds.NewTransport()
		own.MaxIdleConnsPerHost, others.MaxIdleConnsPerHost = maxIdleConns, maxIdleConns
		own.ResponseHeaderTimeout, others.ResponseHeaderTimeout = 0, 0 // each attempt has its own timeout
		own.DisableCompression = true                                  // in a cluster, it takes longer than the transfer

		if caFile != "" {
			if err := bounds.TrustFile(own, caFile, nil); err != nil {
				return fmt.Errorf("clients.hyperfleet_api.ca_file: %w", err)
			}
		}

		toAPI, toOthers = own, others
	}

	if c.options.Calls != nil {
		toAPI = c.options.Calls.WrapTransport("hyperfleet-api", operationName, toAPI)
		toOthers = c.options.Calls.WrapTransport("api_call", nil, toOthers)
	}

	c.api = &http.Client{Transport: toAPI, CheckRedirect: c.checkRedirect}
	c.others = &http.Client{Transport: toOthers, CheckRedirect: c.checkRedirect}

	return nil
}

// isAPI reports whether a URL has the origin of the fleet API. Other hosts, and other ports of the same host,
// must not get the credentials of the fleet API.
func (c *Client) isAPI(target *url.URL) bool { return isSameOrigin(target, c.base) }

func isSameOrigin(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Host, b.Host)
}

// checkRedirect permits redirects only to the origin of the first request, because its headers and its body are only
// for this server. A write to the fleet API must not become a read, which would count as the write.
func (c *Client) checkRedirect(next *http.Request, via []*http.Request) error {
	if !isSameOrigin(next.URL, via[0].URL) || c.isAPI(next.URL) && next.Method != via[0].Method {
		return http.ErrUseLastResponse
	}

	if len(via) > maxRedirects {
		return fmt.Errorf("more than %d redirects", maxRedirects)
	}

	return nil
}

// send sends a request, with retries. It returns an *Error for a response with a status of another class than 2xx.
func (c *Client) send(ctx context.Context, x *exchange) (*Response, error) {
	for attempt := 1; ; attempt++ {
		response, err := c.sendOnce(ctx, x)
		if err == nil {
			return response, nil
		}

		delay, shouldRetry := c.retryDelay(err, attempt, x.policy)
		if !shouldRetry || ctx.Err() != nil {
			return nil, err
		}

		if retry.Sleep(ctx, c.options.Clock, delay) != nil {
			return nil, err // the error of the attempt has more information than the context's error
		}
	}
}

func (c *Client) sendOnce(ctx context.Context, x *exchange) (*Response, error) {
	// The timeout of an attempt uses the real clock, because it limits a connection.
	bounded, cancel := context.WithTimeout(ctx, x.timeout)
	defer cancel()

	request, err := http.NewRequestWithContext(bounded, x.method, x.target.String(), strings.NewReader(x.body))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", x.description, stripURL(err))
	}

	if err := c.setHeaders(ctx, request, x); err != nil {
		return nil, &networkError{x.description, err}
	}

	to := c.others
	if c.isAPI(x.target) {
		to = c.api
	}

	response, err := to.Do(request)
	if err != nil {
		if err = stripURL(err); errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = fmt.Errorf("no response within %s: %w", x.timeout, context.DeadlineExceeded)
		}

		return nil, &networkError{x.description, err}
	}
	defer response.Body.Close() //nolint:errcheck // the body was read, or is not used

	body, err := io.ReadAll(io.LimitReader(response.Body, x.maxBody+1))
	if err != nil {
		return nil, &networkError{x.description, fmt.Errorf("read response: %w", stripURL(err))}
	}

	if int64(len(body)) > x.maxBody {
		return nil, fmt.Errorf("%s: the response is larger than %d bytes", x.description, x.maxBody)
	}

	out := &Response{Status: response.StatusCode, Body: body, header: response.Header}
	if out.Status < 200 || out.Status > 299 {
		return nil, c.newErrorOf(x, out)
	}

	return out, nil
}

// setHeaders sets the headers of a request. Only a request to the fleet API gets the token and the headers of the
// configuration. The token is read for every request, because the file changes when the token is renewed.
func (c *Client) setHeaders(ctx context.Context, request *http.Request, x *exchange) error {
	header := request.Header
	maps.Copy(header, x.header)

	setDefault := func(name, value string) {
		if header.Get(name) == "" {
			header.Set(name, value)
		}
	}

	if x.body != "" {
		setDefault("Content-Type", "application/json")
	}

	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(header))

	if !c.isAPI(x.target) {
		return nil
	}

	for name, value := range c.options.Headers {
		setDefault(name, value)
	}

	setDefault("User-Agent", c.options.UserAgent)
	setDefault("Accept", "application/json, application/problem+json")

	if c.tokenFile == "" || header.Get("Authorization") != "" {
		return nil
	}

	token, err := log.ReadSecretFile(c.tokenFile)
	if err == nil && strings.ContainsAny(token.Reveal(), "\r\n") {
		err = fmt.Errorf("%s has more than one line", c.tokenFile)
	}

	if err != nil {
		return fmt.Errorf("token of clients.hyperfleet_api: %w", err)
	}

	header.Set("Authorization", "Bearer "+token.Reveal())

	return nil
}

// retryDelay returns the delay before the next attempt, and false if the request must not be sent again.
func (c *Client) retryDelay(err error, attempt int, policy Policy) (delay time.Duration, shouldRetry bool) {
	if attempt >= policy.Attempts || !isOutage(err) {
		return 0, false
	}

	delay = policy.BaseDelay

	switch policy.Backoff {
	case Linear:
		delay *= time.Duration(attempt)
	case Exponential:
		delay <<= attempt - 1
	}

	delay = min(delay, policy.MaxDelay)

	const jitter = 0.1
	delay += time.Duration((2*c.random() - 1) * jitter * float64(delay))

	if status, ok := errors.AsType[*Error](err); ok && status.retryAfter > delay {
		// If the server's Retry-After is longer than MaxDelay, only the caller sends the request again.
		return status.retryAfter, status.retryAfter <= policy.MaxDelay
	}

	return delay, true
}

// operationName returns the name of a request in the metrics, without IDs.
func operationName(r *http.Request) string {
	_, route, isRoute := strings.Cut(r.URL.Path, BasePath+"/")

	switch first, rest, hasRest := strings.Cut(route, "/"); {
	case first == "changes", first == "leases":
		return first
	case isRoute && !hasRest && r.Method == http.MethodGet:
		return "list"
	case strings.HasSuffix(rest, "/statuses"):
		return strings.ToLower(r.Method) + "-status"
	default:
		return strings.ToLower(r.Method)
	}
}
