// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
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
	// maxAttempts is the number of attempts of one call. The delay before the second attempt is
	// retryDelay to 2*retryDelay, the delay before the third twice as long. All calls of this
	// package can be repeated: a repeated reservation or token request returns the same job to the
	// same stack.
	maxAttempts   = 3
	retryDelay    = 200 * time.Millisecond
	maxDrainBytes = 64 << 10
	// minRetryAfter is the shortest delay after an exceeded rate limit, whose windows last one
	// second.
	minRetryAfter = time.Second
)

// client calls the agent API with the cluster's agent token.
type client struct {
	http     *http.Client
	base     string
	token    string
	clock    clock.Clock
	redactor log.Redactor
}

func newClient(config Config, endpoint string, clk clock.Clock) *client {
	transport := config.BaseTransport
	if transport == nil {
		transport = bounds.SharedTransport()
	}

	if config.WrapTransport != nil {
		transport = config.WrapTransport(transport)
	}

	timeout := config.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}

	token := strings.TrimSpace(config.Token)

	return &client{
		base: endpoint, token: token, clock: clk, redactor: newRedactor(token),
		http: &http.Client{
			Transport: transport, Timeout: timeout,
			// Redirects are not followed, so that the token reaches only the configured host.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// call sends a request and decodes the response into out, which may be nil. It retries network
// errors and server errors. An error response from Buildkite is a *responseError.
func (c *client) call(ctx context.Context, method, path string, body, out any) error {
	for attempt := 1; ; attempt++ {
		err := c.send(ctx, method, path, body, out)
		response, isResponse := errors.AsType[*responseError](err)
		_, isTooLarge := errors.AsType[*bounds.ResponseTooLargeError](err)

		isRejected := isResponse && response.status < http.StatusInternalServerError

		if err == nil || isTooLarge || attempt == maxAttempts || ctx.Err() != nil || isRejected {
			return err
		}

		wait := retryDelay << (attempt - 1)
		if err := retry.Sleep(ctx, c.clock, wait+rand.N(wait)); err != nil { //nolint:gosec // jitter, no secret
			return fmt.Errorf("wait for the next attempt: %w", err)
		}
	}
}

// send sends a request and decodes the response into out. It redacts the token in errors.
func (c *client) send(ctx context.Context, method, path string, body, out any) error {
	var text []byte

	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
	}

	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return c.redactor.RedactError(err)
	}

	req.Header.Set("Authorization", "Token "+c.token)
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", "application/json")

	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := c.http.Do(req)
	if err != nil {
		return c.redactor.RedactError(err)
	}

	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrainBytes)
		_ = resp.Body.Close()
	}()

	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return c.parseErrorResponse(resp)
	}

	return c.decodeResponse(resp, out)
}

func (c *client) decodeResponse(resp *http.Response, out any) error {
	if out == nil {
		return nil
	}

	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		if tooLarge, ok := errors.AsType[*bounds.ResponseTooLargeError](err); ok {
			return fmt.Errorf("decode the response: %w", tooLarge)
		}

		return fmt.Errorf("decode the response: %w", c.redactor.RedactError(err))
	}

	return nil
}

// parseErrorResponse parses {"message"} and the rate limit headers
// (https://buildkite.com/docs/apis/agent-api/stacks#rate-limiting).
func (c *client) parseErrorResponse(resp *http.Response) error {
	var parsed struct {
		Message string `json:"message"`
	}

	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBodyBytes))
	_ = json.Unmarshal(text, &parsed) // a proxy's error page is not JSON

	out := &responseError{status: resp.StatusCode, retryAfter: minRetryAfter}
	out.message = workload.Truncate(c.redactor.Redact(strings.Join(strings.Fields(parsed.Message), " ")), maxMessageLength)

	for _, name := range []string{"Retry-After", "RateLimit-Reset"} {
		if seconds, err := strconv.Atoi(resp.Header.Get(name)); err == nil && seconds > 0 {
			out.retryAfter = max(out.retryAfter, time.Duration(min(seconds, maxRetryAfterSeconds))*time.Second)

			break
		}
	}

	return out
}

// maxRetryAfterSeconds bounds the delay that a server can request.
const maxRetryAfterSeconds = 3600
