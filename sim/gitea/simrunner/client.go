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

// task is a job as the server sends it.
type task struct {
	ID       string `json:"id"`
	Workflow []byte `json:"workflowPayload"`
	Context  struct {
		Repository string `json:"repository"`
		ActionsURL string `json:"gitea_default_actions_url"`
	} `json:"context"`
}

// scripts returns the scripts of the steps of the task's one job.
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

// rpcError is an error of the Connect protocol.
type rpcError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// Error returns the code and the message in the format of the real programs.
func (r *rpcError) Error() string { return r.Code + ": " + r.Message }

func isUnregistered(err error) bool {
	rpcErr, ok := errors.AsType[*rpcError](err)
	return ok && rpcErr.Code == "unauthenticated"
}

// call makes one call of the RunnerService.
func (c *client) call(ctx context.Context, method string, body, target any) error {
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
		rpcErr := &rpcError{Code: "unavailable", Message: resp.Status}
		raw, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
		_ = json.Unmarshal(raw, rpcErr)
		return rpcErr
	}
	if err := json.NewDecoder(resp.Body).Decode(target); err != nil {
		return fmt.Errorf("decode response: %w", err)
	}
	return nil
}

// fetch requests a job. It returns nil if there is no job.
func (c *client) fetch(ctx context.Context) (*task, error) {
	method, body := "FetchTask", map[string]any{"tasksVersion": "0"}
	if c.conn.handle != "" {
		method, body["handle"] = "FetchSingleTask", c.conn.handle
	}
	var response struct {
		Task *task `json:"task"`
	}
	err := c.call(ctx, method, body, &response)
	return response.Task, err
}

// update reports the state of a job, and returns the result that the server has for the job.
func (c *client) update(ctx context.Context, t *task, result string) (string, error) {
	state := map[string]any{"id": t.ID, "result": result}
	if result != resultUnspecified {
		state["stoppedAt"] = time.Now().UTC().Format(time.RFC3339Nano)
	}
	var response struct {
		State struct {
			Result string `json:"result"`
		} `json:"state"`
	}
	err := c.call(ctx, "UpdateTask", map[string]any{"state": state}, &response)
	return response.State.Result, err
}

// sendLog sends lines of a job's log. offset is the index of the first line. isLast says that no more lines follow.
func (c *client) sendLog(ctx context.Context, t *task, offset int, lines []string, isLast bool) error {
	rows := make([]map[string]any, 0, len(lines))
	for _, line := range lines {
		rows = append(rows, map[string]any{"time": time.Now().UTC().Format(time.RFC3339Nano), "content": line})
	}
	var response map[string]any
	return c.call(ctx, "UpdateLog",
		map[string]any{"taskId": t.ID, "index": strconv.Itoa(offset), "rows": rows, "noMore": isLast}, &response)
}
