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
	"strings"
	"time"
)

const callTimeout = 30 * time.Second

// task is a job as the server gives it out.
type task struct {
	ID       string `json:"id"`
	Workflow []byte `json:"workflowPayload"`
	Context  struct {
		Repository string `json:"repository"`
		ActionsURL string `json:"gitea_default_actions_url"`
	} `json:"context"`
}

// scripts are those of the steps of the task's one job.
func (t *task) scripts() ([]string, error) {
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct {
				Run string `json:"run"`
			} `json:"steps"`
		} `json:"jobs"`
	}
	if err := json.Unmarshal(t.Workflow, &workflow); err != nil {
		return nil, fmt.Errorf("the workflow file is not usable: %w", err)
	}
	var out []string
	for _, job := range workflow.Jobs {
		for _, step := range job.Steps {
			out = append(out, step.Run)
		}
	}
	return out, nil
}

type client struct {
	http *http.Client
	conn connection
}

func newClient(conn connection) *client {
	return &client{conn: conn, http: &http.Client{Timeout: callTimeout, Transport: &http.Transport{Proxy: nil}}}
}

// refusal is an error of the Connect protocol.
type refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error gives code and message as the real programs print them.
func (r *refusal) Error() string { return r.Code + ": " + r.Message }

func isUnregistered(err error) bool {
	refused, ok := errors.AsType[*refusal](err)
	return ok && refused.Code == "unauthenticated"
}

// call makes one call of the RunnerService.
func (c *client) call(ctx context.Context, method string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return fmt.Errorf("encode request: %w", err)
	}
	address := strings.TrimRight(c.conn.Address, "/") + "/api/actions/runner.v1.RunnerService/" + method
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("build request: %w", err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("X-Runner-Uuid", c.conn.UUID)
	req.Header.Set("X-Runner-Token", c.conn.Token)
	resp, err := c.http.Do(req)
	if err != nil {
		return fmt.Errorf("connect to the server: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		said := &refusal{Code: "unavailable", Message: resp.Status}
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		_ = json.Unmarshal(raw, said)
		return said
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("read reply: %w", err)
	}
	return nil
}

// fetch asks for a job; nil without one.
func (c *client) fetch(ctx context.Context) (*task, error) {
	method, body := "FetchTask", map[string]any{"tasksVersion": "0"}
	if c.conn.handle != "" {
		method, body["handle"] = "FetchSingleTask", c.conn.handle
	}
	var said struct {
		Task *task `json:"task"`
	}
	err := c.call(ctx, method, body, &said)
	return said.Task, err
}

// update tells the server of a job's state, and gives what the server makes of it.
func (c *client) update(ctx context.Context, t *task, result string) (string, error) {
	state := map[string]any{"id": t.ID, "result": result}
	if result != resultNone {
		state["stoppedAt"] = time.Now().UTC().Format(time.RFC3339Nano)
	}
	var said struct {
		State struct {
			Result string `json:"result"`
		} `json:"state"`
	}
	err := c.call(ctx, "UpdateTask", map[string]any{"state": state}, &said)
	return said.State.Result, err
}

// logs sends lines of a job's log.
func (c *client) logs(ctx context.Context, t *task, from int, lines []string, last bool) error {
	rows := make([]map[string]any, 0, len(lines))
	for _, line := range lines {
		rows = append(rows, map[string]any{"time": time.Now().UTC().Format(time.RFC3339Nano), "content": line})
	}
	var said map[string]any
	return c.call(ctx, "UpdateLog", map[string]any{"taskId": t.ID, "index": strconv.Itoa(from), "rows": rows, "noMore": last}, &said)
}
