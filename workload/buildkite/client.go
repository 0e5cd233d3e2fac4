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

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// maxTries of a call, with retryPause before the second and twice that before the
	// third, and as much again by chance. All calls here may be repeated: those that
	// reserve or issue give the same stack the same job again.
	maxTries   = 3
	retryPause = 200 * time.Millisecond
	maxDrain   = 64 << 10
	// leastAfter is how long a spent rate limit lasts at least; its windows have a second.
	leastAfter = time.Second
)

// client calls the agent API with the cluster's agent token.
type client struct {
	http   *http.Client
	base   string
	token  string
	clock  clock.Clock
	redact log.Redactor
}

func newClient(config Config, endpoint string, clk clock.Clock) *client {
	transport := config.Network
	if transport == nil {
		transport = httpbound.Shared()
	}

	if config.Transport != nil {
		transport = config.Transport(transport)
	}

	timeout := config.Timeout
	if timeout <= 0 {
		timeout = defaultTimeout
	}

	token := strings.TrimSpace(config.Token)

	return &client{
		base: endpoint, token: token, clock: clk, redact: newRedactor(token),
		http: &http.Client{
			Transport: transport, Timeout: timeout,
			// The token goes to the configured host and nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// call sends a request and reads the answer into a value, which may be nil. Outages of
// the network and the server are tried again. A refusal is an *answer.
func (c *client) call(ctx context.Context, method, path string, body, into any) error {
	for try := 1; ; try++ {
		err := c.once(ctx, method, path, body, into)
		got, refused := errors.AsType[*answer](err)
		_, large := errors.AsType[*httpbound.TooLargeError](err)

		if err == nil || large || try == maxTries || ctx.Err() != nil || refused && got.status < http.StatusInternalServerError {
			return err
		}

		wait := retryPause << (try - 1)
		if err := retry.Pause(ctx, c.clock, wait+rand.N(wait)); err != nil { //nolint:gosec // chance, no secret
			return fmt.Errorf("wait to try again: %w", err)
		}
	}
}

func (c *client) once(ctx context.Context, method, path string, body, into any) error {
	var text []byte

	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return fmt.Errorf("write the request: %w", err)
		}
	}

	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return c.redact.Cause(err)
	}

	req.Header.Set("Authorization", "Token "+c.token)
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", "application/json")

	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := c.http.Do(req)
	if err != nil {
		return c.redact.Cause(err)
	}

	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, maxDrain)
		_ = resp.Body.Close()
	}()

	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return c.refusal(resp)
	}

	return c.read(resp, into)
}

func (c *client) read(resp *http.Response, into any) error {
	if into == nil {
		return nil
	}

	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		if large, ok := errors.AsType[*httpbound.TooLargeError](err); ok {
			return fmt.Errorf("read the answer: %w", large)
		}

		return fmt.Errorf("read the answer: %w", c.redact.Cause(err))
	}

	return nil
}

// refusal reads {"message"} and the headers of the rate limit
// (https://buildkite.com/docs/apis/agent-api/stacks#rate-limiting).
func (c *client) refusal(resp *http.Response) error {
	var said struct {
		Message string `json:"message"`
	}

	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	_ = json.Unmarshal(text, &said) // an outage's page is no JSON

	out := &answer{status: resp.StatusCode, after: leastAfter}
	out.said = workload.Cut(c.redact.Text(strings.Join(strings.Fields(said.Message), " ")), maxMessage)

	for _, name := range []string{"Retry-After", "RateLimit-Reset"} {
		if seconds, err := strconv.Atoi(resp.Header.Get(name)); err == nil && seconds > 0 {
			out.after = max(out.after, time.Duration(min(seconds, maxAfter))*time.Second)

			break
		}
	}

	return out
}

// maxAfter bounds in seconds how long a server may tell us to wait.
const maxAfter = 3600
