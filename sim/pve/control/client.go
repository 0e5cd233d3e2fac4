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
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// Client is a client of a simulator's control API.
type Client struct {
	// URL is the address of the API, such as http://127.0.0.1:8007.
	URL string
	// HTTP is the HTTP client. nil means a client with a timeout of ten seconds.
	HTTP *http.Client
}

const clientTimeout = 10 * time.Second

// State returns the state of the cluster.
func (c Client) State(ctx context.Context) (State, error) {
	return getJSON[State](ctx, c, "/sim/state")
}

// Calls returns the totals of the call log.
func (c Client) Calls(ctx context.Context) (pve.CallCounts, error) {
	return getJSON[pve.CallCounts](ctx, c, "/sim/calls")
}

// Violations returns the calls that no correct client makes.
func (c Client) Violations(ctx context.Context) ([]pve.Violation, error) {
	return getJSON[[]pve.Violation](ctx, c, "/sim/violations")
}

// Floor returns the fastest possible run of identical jobs.
func (c Client) Floor(ctx context.Context, jobs int, job time.Duration) (Floor, error) {
	q := url.Values{"jobs": {strconv.Itoa(jobs)}, "job": {job.String()}}
	return getJSON[Floor](ctx, c, "/sim/floor?"+q.Encode())
}

// Log returns a VM's console.
func (c Client) Log(ctx context.Context, vmid int) (string, error) {
	raw, err := c.do(ctx, http.MethodGet, fmt.Sprintf("/sim/vm/%d/log", vmid), nil)
	return string(raw), err
}

// AddFaults adds rules.
func (c Client) AddFaults(ctx context.Context, rules ...pve.Fault) error {
	body, err := json.Marshal(rules)
	if err != nil {
		return fmt.Errorf("encode faults: %w", err)
	}
	_, err = c.do(ctx, http.MethodPost, "/sim/faults", body)
	return err
}

// ClearFaults removes all rules.
func (c Client) ClearFaults(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodDelete, "/sim/faults", nil)
	return err
}

func getJSON[T any](ctx context.Context, c Client, path string) (T, error) {
	var out T
	raw, err := c.do(ctx, http.MethodGet, path, nil)
	if err != nil {
		return out, err
	}
	if err := json.Unmarshal(raw, &out); err != nil {
		return out, fmt.Errorf("read response of %s: %w", path, err)
	}
	return out, nil
}

func (c Client) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(c.URL, "/")+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("create request %s: %w", path, err)
	}
	client := c.HTTP
	if client == nil {
		client = &http.Client{Timeout: clientTimeout}
	}
	res, err := client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("send request to simulator: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return nil, fmt.Errorf("read response of %s: %w", path, err)
	}
	if res.StatusCode >= http.StatusBadRequest {
		return nil, fmt.Errorf("request %s: simulator returned %s: %s", path, res.Status, strings.TrimSpace(string(raw)))
	}
	return raw, nil
}
