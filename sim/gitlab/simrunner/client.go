// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package simrunner

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"
)

const (
	// callTimeout bounds a call, pollTimeout the question for a job, which is held.
	callTimeout = 30 * time.Second
	pollTimeout = 2 * time.Minute
)

// work is a job as the server gives it out.
type work struct {
	ID      int64  `json:"id"`
	Token   string `json:"token"`
	JobInfo struct {
		Name        string `json:"name"`
		Stage       string `json:"stage"`
		ProjectID   int64  `json:"project_id"`
		ProjectName string `json:"project_name"`
	} `json:"job_info"`
	GitInfo struct {
		RepoURL string `json:"repo_url"`
	} `json:"git_info"`
	RunnerInfo struct {
		Timeout int64 `json:"timeout"`
	} `json:"runner_info"`
	Variables []struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	} `json:"variables"`
	Steps []struct {
		Name   string   `json:"name"`
		Script []string `json:"script"`
	} `json:"steps"`
}

type client struct {
	http *http.Client
	base string
}

func newClient(address string) *client {
	base := strings.TrimSuffix(strings.TrimRight(address, "/"), "/ci")
	return &client{base: base + "/api/v4/", http: &http.Client{Timeout: pollTimeout, Transport: &http.Transport{Proxy: nil}}}
}

// reply is an answer whose body was read.
type reply struct {
	code   int
	status string
	header http.Header
	text   []byte
}

func (c *client) send(ctx context.Context, method, path string, header http.Header, body []byte) (reply, error) {
	if path != "jobs/request" {
		limit, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		ctx = limit
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return reply{}, fmt.Errorf("build request: %w", err)
	}
	maps.Copy(req.Header, header)
	req.Header.Set("User-Agent", "gitlab-runner "+version+" (18-9-stable; go; linux/amd64)")
	resp, err := c.http.Do(req)
	if err != nil {
		return reply{}, fmt.Errorf("connect to the server: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return reply{}, fmt.Errorf("read reply: %w", err)
	}
	return reply{resp.StatusCode, resp.Status, resp.Header, text}, nil
}

func (c *client) sendJSON(ctx context.Context, method, path string, body any) (reply, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return reply{}, fmt.Errorf("encode request: %w", err)
	}
	header := http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
	return c.send(ctx, method, path, header, text)
}

func (r *runner) versionInfo() map[string]any {
	return map[string]any{
		"name": "gitlab-runner", "version": version, "revision": "00000000", "platform": runtime.GOOS,
		"architecture": runtime.GOARCH, "executor": r.executor, "shell": "bash",
		"features": map[string]bool{"variables": true, "trace_reset": true, "trace_checksum": true, "return_exit_code": true},
	}
}

// request asks for a job: nil without one, false where the server refuses the runner.
func (r *runner) request(ctx context.Context) (*work, bool) {
	body := map[string]any{"info": r.versionInfo(), "token": r.token, "system_id": r.systemID}
	if r.heard != "" {
		body["last_update"] = r.heard
	}
	got, err := r.client.sendJSON(ctx, http.MethodPost, "jobs/request", body)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, true
	case err != nil:
		r.log("ERROR: ", "Checking for jobs... error", "runner", short(r.token), "status", err)
		return nil, true // the real one counts some of these before it gives up
	}
	switch got.code {
	case http.StatusCreated:
		var out work
		if err := json.Unmarshal(got.text, &out); err != nil {
			r.log("ERROR: ", "Checking for jobs... error", "runner", short(r.token), "status", err)
			return nil, true
		}
		r.info("Checking for jobs... received", "job", out.ID, "repo_url", cleaned(out.GitInfo.RepoURL), "runner", short(r.token))
		return &out, true
	case http.StatusNoContent:
		r.heard = got.header.Get("X-Gitlab-Last-Update")
		return nil, true
	case http.StatusForbidden:
		r.log("ERROR: ", "Checking for jobs... forbidden", "runner", short(r.token), "status", got.status)
		return nil, false
	default:
		r.log("WARNING: ", "Checking for jobs... failed", "runner", short(r.token), "status", got.status)
		return nil, true
	}
}

// cleaned takes the credentials out of a repository's URL.
func cleaned(address string) string {
	scheme, rest, found := strings.Cut(address, "://")
	at := strings.LastIndex(rest, "@")
	if !found || at < 0 {
		return address
	}
	return scheme + "://" + rest[at+1:]
}

// update tells the server of the job's state; false when the server wants no more of it.
func (r *runner) update(ctx context.Context, w *work, state, failure string, code int) (bool, error) {
	body := map[string]any{"info": r.versionInfo(), "token": w.Token, "state": state}
	if failure != "" {
		body["failure_reason"] = failure
	}
	if code != 0 {
		body["exit_code"] = code
	}
	got, err := r.client.sendJSON(ctx, http.MethodPut, "jobs/"+strconv.FormatInt(w.ID, 10), body)
	return err != nil || !got.abandoned(), err
}

// abandoned reads whether the job goes on.
func (r reply) abandoned() bool {
	state := r.header.Get("Job-Status")
	return r.code == http.StatusForbidden || r.code == http.StatusNotFound || state == "canceled" || state == "failed"
}

// patch appends to the job's log what the server has not got yet, and gives how much of it
// the server has then. A server that has another part than the runner believes, as after a
// call whose answer never came, says in Range where to go on.
func (r *runner) patch(ctx context.Context, w *work, text []byte, from int) (int, bool, error) {
	header := http.Header{
		"Content-Type": {"text/plain"}, "Job-Token": {w.Token},
		"Content-Range": {fmt.Sprintf("%d-%d", from, from+len(text)-1)},
	}
	path := "jobs/" + strconv.FormatInt(w.ID, 10) + "/trace?debug_trace=false"
	got, err := r.client.send(ctx, http.MethodPatch, path, header, text)
	switch {
	case err != nil:
		return from, true, err
	case got.abandoned():
		return from, false, nil
	case got.code == http.StatusRequestedRangeNotSatisfiable:
		var at int
		if _, err := fmt.Sscanf(got.header.Get("Range"), "0-%d", &at); err != nil || at > from+len(text) {
			return from, true, fmt.Errorf("append to the log: range mismatch, and Range is %q", got.header.Get("Range"))
		}
		return at, true, fmt.Errorf("append to the log: range mismatch: the server has %d bytes, and not %d", at, from)
	case got.code != http.StatusAccepted:
		return from, true, fmt.Errorf("append to the log: %s", got.status)
	}
	return from + len(text), true, nil
}
