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

// callTimeout bounds every call but the long poll; pollTimeout bounds that.
const (
	callTimeout = 15 * time.Second
	pollTimeout = 2 * time.Minute
)

// statusError is a refusal by the server.
type statusError struct {
	code    int
	message string
}

func (e *statusError) Error() string {
	return "Http response code: " + strconv.Itoa(e.code) + " (" + e.message + ")"
}

func refusedWith(err error, code int) bool {
	var refused *statusError
	return errors.As(err, &refused) && refused.code == code
}

// client speaks the private protocol.
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

// call sends one request; reply may be nil. The status 204 leaves reply alone.
func (c *client) call(ctx context.Context, limit time.Duration, method, path string, body, reply any) (status int, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
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
		return 0, fmt.Errorf("read reply: %w", err)
	}
	if resp.StatusCode >= 300 {
		var fault protocol.Fault
		_ = json.Unmarshal(raw, &fault)
		return resp.StatusCode, &statusError{resp.StatusCode, fault.Message}
	}
	if reply != nil && resp.StatusCode != http.StatusNoContent {
		if err := json.Unmarshal(raw, reply); err != nil {
			return resp.StatusCode, fmt.Errorf("parse reply of %s: %w", path, err)
		}
	}
	return resp.StatusCode, nil
}

// retry repeats a call while the network or the server (5xx) is at fault.
func (c *client) retry(ctx context.Context, attempts int, do func() error) error {
	for attempt := 1; ; attempt++ {
		err := do()
		var refused *statusError
		if err == nil || attempt == attempts || (errors.As(err, &refused) && refused.code < 500) {
			return err
		}
		select {
		case <-c.clock.After(c.delay):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// login trades the runner's key for an access token.
func (c *client) login(ctx context.Context, config protocol.Config) error {
	key, err := config.RSA.Key()
	if err != nil {
		return fmt.Errorf("read the runner's key: %w", err)
	}
	id := config.Credentials.Data.ClientID
	now := c.clock.Now()
	assertion, err := protocol.Sign(key, protocol.Claims{
		Issuer: json.RawMessage(strconv.Quote(id)), Subject: id, Audience: config.Credentials.Data.AuthorizationURL,
		IssuedAt: unix(now), Expires: unix(now.Add(5 * time.Minute)),
	})
	if err != nil {
		return fmt.Errorf("sign in: %w", err)
	}
	var token protocol.TokenReply
	if _, err := c.call(ctx, callTimeout, http.MethodPost, protocol.PathToken,
		protocol.TokenRequest{ClientID: id, Assertion: assertion}, &token); err != nil {
		return err
	}
	c.auth = "Bearer " + token.AccessToken
	return nil
}

func unix(t time.Time) json.Number { return json.Number(strconv.FormatInt(t.Unix(), 10)) }
