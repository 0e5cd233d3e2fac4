// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/github/protocol"
)

// callTimeout is the timeout of every call except the long poll, and pollTimeout that of the long poll.
const (
	callTimeout = 15 * time.Second
	pollTimeout = 2 * time.Minute
)

// statusError is an error response of the server.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string {
	return "Http response code: " + strconv.Itoa(e.code) + " (" + e.message + ")"
}

func hasStatus(err error, code int) bool {
	var statusErr *statusError
	return errors.As(err, &statusErr) && statusErr.code == code
}

// client calls the server with the private protocol.
type client struct {
	http  *http.Client
	base  string
	auth  string
	delay time.Duration // between attempts after a network failure
	clock clock.WithTicker
}

func newClient(base string, delay time.Duration, clk clock.WithTicker) *client {
	return &client{base: base, http: &http.Client{Transport: &http.Transport{Proxy: nil}}, delay: delay, clock: clk}
}

// call sends one request and decodes the response into reply, which may be nil. If the status is
// 204, call does not change reply.
func (c *client) call(ctx context.Context, timeout time.Duration, method, path string, body, reply any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	text, err := json.Marshal(body)
	if err != nil {
		return 0, fmt.Errorf("encode request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return 0, fmt.Errorf("build request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	if c.auth != "" {
		req.Header.Set("Authorization", c.auth)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return 0, fmt.Errorf("connect to the server: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return 0, fmt.Errorf("read response: %w", err)
	}
	if resp.StatusCode >= 300 {
		var fault protocol.ErrorBody
		_ = json.Unmarshal(raw, &fault)
		return resp.StatusCode, &statusError{resp.StatusCode, fault.Message}
	}
	if reply != nil && resp.StatusCode != http.StatusNoContent {
		if err := json.Unmarshal(raw, reply); err != nil {
			return resp.StatusCode, fmt.Errorf("decode response of %s: %w", path, err)
		}
	}
	return resp.StatusCode, nil
}

// retry repeats a call while it fails with a network error or a 5xx response, up to the number of
// attempts.
func (c *client) retry(ctx context.Context, attempts int, call func() error) error {
	for attempt := 1; ; attempt++ {
		err := call()
		var statusErr *statusError
		if err == nil || attempt == attempts || (errors.As(err, &statusErr) && statusErr.code < 500) {
			return err
		}
		select {
		case <-c.clock.After(c.delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// login exchanges an assertion that is signed with the runner's key for an access token.
func (c *client) login(ctx context.Context, config protocol.Config) error {
	key, err := config.RSA.DecodeKey()
	if err != nil {
		return fmt.Errorf("decode the runner's key: %w", err)
	}
	id := config.Credentials.Data.ClientID
	now := c.clock.Now()
	assertion, err := protocol.Sign(key, protocol.Claims{
		Issuer: json.RawMessage(strconv.Quote(id)), Subject: id, Audience: config.Credentials.Data.AuthorizationURL,
		IssuedAt: formatUnix(now), ExpiresAt: formatUnix(now.Add(5 * time.Minute)),
	})
	if err != nil {
		return fmt.Errorf("sign assertion: %w", err)
	}
	var token protocol.TokenResponse
	if _, err := c.call(ctx, callTimeout, http.MethodPost, protocol.PathToken,
		protocol.TokenRequest{ClientID: id, Assertion: assertion}, &token); err != nil {
		return err
	}
	c.auth = "Bearer " + token.AccessToken
	return nil
}

func formatUnix(t time.Time) json.Number { return json.Number(strconv.FormatInt(t.Unix(), 10)) }
