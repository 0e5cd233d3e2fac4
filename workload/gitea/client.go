// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	userAgent      = "hyperfleet"
	defaultTimeout = 30 * time.Second
	apiPath        = "/api/v1"
	// registerPath is the path of the call with which a runner registers itself.
	registerPath = "/api/actions/runner.v1.RunnerService/Register"

	maxErrorBodyBytes = 64 << 10
	maxMessageLength  = 500
	// maxRetryAfter bounds the delay that a server can request.
	maxRetryAfter = time.Hour
)

// client calls one server.
type client struct {
	http     *http.Client
	base     string
	token    string
	redactor log.Redactor
}

func newClient(config Config, base, token string, clk clock.Clock) *client {
	transport := config.BaseTransport
	if transport == nil {
		transport = bounds.SharedTransport()
	}

	if config.WrapTransport != nil {
		transport = config.WrapTransport(transport)
	}

	return &client{
		base: base, token: token, redactor: newRedactor(token),
		http: &http.Client{
			// A POST is not retried, because the failed attempt may have created an object.
			Transport:     retry.NewTransport(transport, clk, func(r *http.Request) bool { return r.Method != http.MethodPost }),
			Timeout:       config.Timeout,
			CheckRedirect: followSameServer,
		},
	}
}

// maxRedirects bounds the redirects of one call. A repository that was renamed often has one.
const maxRedirects = 3

// followSameServer follows only redirects to the server of the first request, so that the token reaches only the
// configured host. The servers redirect calls for the former name of a repository.
func followSameServer(next *http.Request, previous []*http.Request) error {
	first := previous[0].URL
	if next.URL.Scheme != first.Scheme || next.URL.Host != first.Host || len(previous) > maxRedirects {
		return http.ErrUseLastResponse
	}

	return nil
}

// callAPI calls the REST API. An error response is a *responseError.
func (c *client) callAPI(ctx context.Context, method, path string, body, out any) (http.Header, error) {
	return c.call(ctx, method, apiPath+path, body, out, func(h http.Header) { h.Set("Authorization", "token "+c.token) })
}

// registerRunner makes the call with which a runner registers itself. Its only credential is the
// registration token in the body.
func (c *client) registerRunner(ctx context.Context, body, out any) error {
	_, err := c.call(ctx, http.MethodPost, registerPath, body, out, func(h http.Header) { h.Set("Connect-Protocol-Version", "1") })

	return err
}

// call sends a request and decodes the response into out, if out is not nil. It returns the headers of the
// response, and redacts secrets in errors.
func (c *client) call(
	ctx context.Context, method, path string, body, out any, setHeaders func(http.Header),
) (http.Header, error) {
	var text []byte

	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("encode the request: %w", err)
		}
	}

	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, c.redactor.RedactError(err)
	}

	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", "application/json")
	setHeaders(req.Header)

	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.redactor.RedactError(err)
	}

	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, maxErrorBodyBytes)
		_ = resp.Body.Close()
	}()

	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, c.parseErrorResponse(resp)
	}

	if out == nil {
		return resp.Header, nil
	}

	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		if tooLarge, ok := errors.AsType[*bounds.ResponseTooLargeError](err); ok {
			return nil, fmt.Errorf("decode the response: %w", tooLarge)
		}

		return nil, fmt.Errorf("decode the response: %w", c.redactor.RedactError(err))
	}

	return resp.Header, nil
}

// parseErrorResponse parses an error of the REST API, {"message"}, or of the Connect protocol,
// which also contains a code.
func (c *client) parseErrorResponse(resp *http.Response) error {
	var parsed struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}

	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBodyBytes))
	_ = json.Unmarshal(text, &parsed) // a proxy's error page is not JSON

	out := &responseError{status: resp.StatusCode, code: parsed.Code, retryAfter: defaultRetryAfter}
	out.message = workload.Truncate(c.redactor.Redact(strings.Join(strings.Fields(parsed.Message), " ")), maxMessageLength)

	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		out.retryAfter = time.Duration(min(seconds, int(maxRetryAfter/time.Second))) * time.Second
	}

	return out
}

// OperationName returns the name of a call for the metrics: the method and the path, with the names
// and numbers of objects replaced by {}.
func OperationName(r *http.Request) string {
	path := r.URL.EscapedPath()
	if strings.HasSuffix(path, registerPath) {
		return r.Method + " " + registerPath
	}

	_, path, ok := strings.Cut(path, apiPath+"/")
	if !ok {
		return r.Method
	}

	parts := strings.Split(path, "/")
	nameSegments := map[string]int{"repos": 2, "orgs": 1, "repositories": 1}[parts[0]]

	for i := 1; i < len(parts); i++ {
		_, err := strconv.ParseInt(parts[i], 10, 64)
		if i <= nameSegments || err == nil {
			parts[i] = "{}"
		}
	}

	return r.Method + " /" + strings.Join(parts, "/")
}
