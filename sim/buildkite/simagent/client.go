// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simagent

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// callTimeout is the timeout of every call.
const callTimeout = 15 * time.Second

// statusError is an error response of the server. The real agent prints the same text.
type statusError struct {
	code       int
	text       string
	message    string
	retryAfter time.Duration
}

func (e *statusError) Error() string {
	if e.message == "" {
		return e.text
	}
	return e.text + ": " + e.message
}

func hasStatus(err error, code int) bool {
	var statusErr *statusError
	return errors.As(err, &statusErr) && statusErr.code == code
}

// client calls the agent API.
type client struct {
	http  *http.Client
	base  string
	token string
	delay time.Duration
}

func newClient(base, token string, delay time.Duration) *client {
	return &client{
		http: &http.Client{Transport: &http.Transport{Proxy: nil}}, base: strings.TrimRight(base, "/"), token: token, delay: delay,
	}
}

func (c *client) call(ctx context.Context, method, path string, body, target any) error {
	if body == nil {
		return c.send(ctx, method, path, nil, nil, target)
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	return c.send(ctx, method, path, text, map[string]string{"Content-Type": "application/json"}, target)
}

// uploadChunk uploads a compressed chunk of the job's log.
func (c *client) uploadChunk(ctx context.Context, job string, sequence, offset int, data []byte) error {
	var body bytes.Buffer
	zip := gzip.NewWriter(&body)
	_, _ = zip.Write(data) // a write to memory does not fail
	_ = zip.Close()
	return c.send(ctx, http.MethodPost,
		fmt.Sprintf("/jobs/%s/chunks?sequence=%d&offset=%d&size=%d", job, sequence, offset, len(data)),
		body.Bytes(), map[string]string{"Content-Type": "text/plain", "Content-Encoding": "gzip"}, nil)
}

func (c *client) send(ctx context.Context, method, path string, body []byte, headers map[string]string, target any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("build request: %w", err)
	}
	req.Header.Set("Authorization", "Token "+c.token)
	req.Header.Set("User-Agent", "buildkite-agent/"+version)
	for name, value := range headers {
		req.Header.Set(name, value)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("connect to Buildkite: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return fmt.Errorf("read response: %w", err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		statusErr := &statusError{code: resp.StatusCode, text: method + " " + c.base + path + ": " + resp.Status}
		var body struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(raw, &body)
		statusErr.message = body.Message
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			statusErr.retryAfter = time.Duration(seconds) * time.Second
		}
		return statusErr
	}
	if target == nil {
		return nil
	}
	if err := json.Unmarshal(raw, target); err != nil {
		return fmt.Errorf("decode response: %w", err)
	}
	return nil
}

// isRetryable reports whether the agent repeats a call after an error: a network error, 429 or 5xx.
func isRetryable(err error) bool {
	var statusErr *statusError
	return !errors.As(err, &statusErr) || statusErr.code == http.StatusTooManyRequests || statusErr.code >= 500
}

// retry repeats a call while shouldRetry returns true, up to the number of attempts. It calls warn
// for every error that it retries.
func (c *client) retry(
	ctx context.Context, attempts int, shouldRetry func(error) bool, warn func(error), call func() error,
) error {
	for attempt := 1; ; attempt++ {
		err := call()
		if err == nil || attempt == attempts || !shouldRetry(err) {
			return err
		}
		warn(err)
		wait := c.delay
		var statusErr *statusError
		if errors.As(err, &statusErr) && statusErr.retryAfter > 0 {
			wait = statusErr.retryAfter
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
