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

// callTimeout bounds every call.
const callTimeout = 15 * time.Second

// statusError is a refusal by the server, in the agent's words.
type statusError struct {
	code    int
	text    string
	message string
	after   time.Duration
}

func (e *statusError) Error() string {
	if e.message == "" {
		return e.text
	}
	return e.text + ": " + e.message
}

func refusedWith(err error, code int) bool {
	var refused *statusError
	return errors.As(err, &refused) && refused.code == code
}

// client speaks the agent API.
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

func (c *client) call(ctx context.Context, method, path string, body, into any) error {
	if body == nil {
		return c.send(ctx, method, path, nil, nil, into)
	}
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	return c.send(ctx, method, path, text, map[string]string{"Content-Type": "application/json"}, into)
}

// chunk uploads a piece of the job's log, compressed.
func (c *client) chunk(ctx context.Context, job string, sequence, offset int, data []byte) error {
	var body bytes.Buffer
	zip := gzip.NewWriter(&body)
	_, _ = zip.Write(data) // into memory
	_ = zip.Close()
	return c.send(ctx, http.MethodPost,
		fmt.Sprintf("/jobs/%s/chunks?sequence=%d&offset=%d&size=%d", job, sequence, offset, len(data)),
		body.Bytes(), map[string]string{"Content-Type": "text/plain", "Content-Encoding": "gzip"}, nil)
}

func (c *client) send(ctx context.Context, method, path string, body []byte, headers map[string]string, into any) error {
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
		return fmt.Errorf("read answer: %w", err)
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		refused := &statusError{code: resp.StatusCode, text: method + " " + c.base + path + ": " + resp.Status}
		var said struct {
			Message string `json:"message"`
		}
		_ = json.Unmarshal(raw, &said)
		refused.message = said.Message
		if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
			refused.after = time.Duration(seconds) * time.Second
		}
		return refused
	}
	if into == nil {
		return nil
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}

// retryable is what the agent tries again: no answer, 429 and 5xx.
func retryable(err error) bool {
	var refused *statusError
	return !errors.As(err, &refused) || refused.code == http.StatusTooManyRequests || refused.code >= 500
}

// retry repeats a call; warn is told of every failure that is not the last.
func (c *client) retry(ctx context.Context, attempts int, again func(error) bool, warn func(error), do func() error) error {
	for attempt := 1; ; attempt++ {
		err := do()
		if err == nil || attempt == attempts || !again(err) {
			return err
		}
		warn(err)
		wait := c.delay
		var refused *statusError
		if errors.As(err, &refused) && refused.after > 0 {
			wait = refused.after
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
