// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package control

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// callTimeout is the timeout of a control call.
const callTimeout = 30 * time.Second

// Client calls the control API of a simulator.
type Client struct {
	base string
	http *http.Client
}

// NewClient returns a client for the control API at base, such as http://127.0.0.1:8481.
func NewClient(base string) *Client {
	return &Client{
		base: strings.TrimRight(base, "/"),
		http: &http.Client{Timeout: callTimeout, Transport: &http.Transport{Proxy: nil}},
	}
}

// Queue queues jobs and returns them.
func (c *Client) Queue(ctx context.Context, spec JobSpec) ([]Job, error) {
	var jobs []Job
	err := c.send(ctx, http.MethodPost, "/sim/jobs", spec, &jobs)
	return jobs, err
}

// Approve queues a job that waits for a protected environment.
func (c *Client) Approve(ctx context.Context, job int64) error {
	return c.send(ctx, http.MethodPost, "/sim/jobs/"+strconv.FormatInt(job, 10)+"/approve", nil, nil)
}

// Cancel cancels an unfinished job.
func (c *Client) Cancel(ctx context.Context, job int64) error {
	return c.send(ctx, http.MethodPost, "/sim/jobs/"+strconv.FormatInt(job, 10)+"/cancel", nil, nil)
}

// State returns a snapshot of the jobs, runners and counters.
func (c *Client) State(ctx context.Context) (State, error) {
	var state State
	err := c.send(ctx, http.MethodGet, "/sim/state", nil, &state)
	return state, err
}

// Violations returns the violations of the platform's contract so far.
func (c *Client) Violations(ctx context.Context) ([]Violation, error) {
	var list []Violation
	err := c.send(ctx, http.MethodGet, "/sim/violations", nil, &list)
	return list, err
}

// SetFaults replaces the faults.
func (c *Client) SetFaults(ctx context.Context, faults Faults) error {
	return c.send(ctx, http.MethodPost, "/sim/faults", faults, nil)
}

// SetWebhook sets the target of all webhooks.
func (c *Client) SetWebhook(ctx context.Context, target WebhookTarget) error {
	return c.send(ctx, http.MethodPost, "/sim/webhook", target, nil)
}

func (c *Client) send(ctx context.Context, method, path string, body, result any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode request to %s: %w", path, err)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("build request to %s: %w", path, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("call the simulator's control API: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode >= 300 {
		var fault struct {
			Message string `json:"message"`
		}
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		_ = json.Unmarshal(raw, &fault)
		return fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, fault.Message)
	}
	if result == nil {
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(result); err != nil {
		return fmt.Errorf("decode response of %s: %w", path, err)
	}
	return nil
}
