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

	"github.com/hyperfleet/hyperfleet/kit/httpbound"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	userAgent      = "hyperfleet"
	defaultTimeout = 30 * time.Second
	apiPath        = "/api/v1"
	// registerPath is the call by which a runner registers itself.
	registerPath = "/api/actions/runner.v1.RunnerService/Register"

	maxErrorBody = 64 << 10
	maxMessage   = 500
	// maxAfter bounds how long a server may tell us to wait.
	maxAfter = time.Hour
)

// client calls one server.
type client struct {
	http   *http.Client
	base   string
	token  string
	redact log.Redactor
}

func newClient(config Config, base, token string, clk clock.Clock) *client {
	transport := config.Network
	if transport == nil {
		transport = httpbound.Shared()
	}

	if config.Transport != nil {
		transport = config.Transport(transport)
	}

	return &client{
		base: base, token: token, redact: newRedactor(token),
		http: &http.Client{
			// A POST is never repeated: it may have made something.
			Transport: retry.Transport(transport, clk, func(r *http.Request) bool { return r.Method != http.MethodPost }),
			Timeout:   config.Timeout,
			// The token goes to the configured host and nowhere else.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
}

// api makes a call of the REST API. A refusal is an *answer.
func (c *client) api(ctx context.Context, method, path string, body, into any) (http.Header, error) {
	return c.call(ctx, method, apiPath+path, body, into, func(h http.Header) { h.Set("Authorization", "token "+c.token) })
}

// register makes the call by which a runner registers itself. It has no credentials beside
// its body.
func (c *client) register(ctx context.Context, body, into any) error {
	_, err := c.call(ctx, http.MethodPost, registerPath, body, into, func(h http.Header) { h.Set("Connect-Protocol-Version", "1") })

	return err
}

func (c *client) call(ctx context.Context, method, path string, body, into any, head func(http.Header)) (http.Header, error) {
	var text []byte

	if body != nil {
		var err error
		if text, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("write the request: %w", err)
		}
	}

	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return nil, c.redact.Cause(err)
	}

	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Accept", "application/json")
	head(req.Header)

	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}

	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.redact.Cause(err)
	}

	defer func() {
		_, _ = io.CopyN(io.Discard, resp.Body, maxErrorBody)
		_ = resp.Body.Close()
	}()

	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, c.refusal(resp)
	}

	if into == nil {
		return resp.Header, nil
	}

	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		if large, ok := errors.AsType[*httpbound.TooLargeError](err); ok {
			return nil, fmt.Errorf("read the answer: %w", large)
		}

		return nil, fmt.Errorf("read the answer: %w", c.redact.Cause(err))
	}

	return resp.Header, nil
}

// refusal reads the error of the API, {"message"}, or of the Connect protocol, which has a
// code as well.
func (c *client) refusal(resp *http.Response) error {
	var said struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}

	text, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	_ = json.Unmarshal(text, &said) // a proxy's page is no JSON

	out := &answer{status: resp.StatusCode, code: said.Code, after: limitWait}
	out.said = workload.Cut(c.redact.Text(strings.Join(strings.Fields(said.Message), " ")), maxMessage)

	if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil && seconds >= 0 {
		out.after = min(time.Duration(min(seconds, int(maxAfter/time.Second)))*time.Second, maxAfter)
	}

	return out
}

// Operation names a call of this package's for the metrics: its method and its path,
// without the names and numbers of objects.
func Operation(r *http.Request) string {
	path := r.URL.EscapedPath()
	if strings.HasSuffix(path, registerPath) {
		return r.Method + " " + registerPath
	}

	_, path, ok := strings.Cut(path, apiPath+"/")
	if !ok {
		return r.Method
	}

	parts := strings.Split(path, "/")
	hide := map[string]int{"repos": 2, "orgs": 1, "repositories": 1}[parts[0]]

	for i := 1; i < len(parts); i++ {
		_, err := strconv.ParseInt(parts[i], 10, 64)
		if i <= hide || err == nil {
			parts[i] = "{}"
		}
	}

	return r.Method + " /" + strings.Join(parts, "/")
}
