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
	// callTimeout is the timeout of a call, and pollTimeout that of a request for a job, which the
	// server may hold.
	callTimeout = 30 * time.Second
	pollTimeout = 2 * time.Minute
)

// work is a job as the server sends it.
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

// response is a response whose body was read.
type response struct {
	code   int
	status string
	header http.Header
	text   []byte
}

func (c *client) send(ctx context.Context, method, path string, header http.Header, body []byte) (response, error) {
	if path != "jobs/request" {
		limit, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		ctx = limit
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return response{}, fmt.Errorf("build request: %w", err)
	}
	maps.Copy(req.Header, header)
	req.Header.Set("User-Agent", "gitlab-runner "+version+" (18-9-stable; go; linux/amd64)")
	resp, err := c.http.Do(req)
	if err != nil {
		return response{}, fmt.Errorf("connect to the server: %w", err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(resp.Body, 4<<20))
	if err != nil {
		return response{}, fmt.Errorf("read response: %w", err)
	}
	return response{resp.StatusCode, resp.Status, resp.Header, text}, nil
}

func (c *client) sendJSON(ctx context.Context, method, path string, body any) (response, error) {
	text, err := json.Marshal(body)
	if err != nil {
		return response{}, fmt.Errorf("encode request: %w", err)
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

// requestJob requests a job. It returns nil if there is no job, and false if the server rejects the
// runner.
func (r *runner) requestJob(ctx context.Context) (assigned *work, isAccepted bool) {
	body := map[string]any{"info": r.versionInfo(), "token": r.token, "system_id": r.systemID}
	if r.lastUpdate != "" {
		body["last_update"] = r.lastUpdate
	}
	resp, err := r.client.sendJSON(ctx, http.MethodPost, "jobs/request", body)
	switch {
	case ctx.Err() != nil && err != nil:
		return nil, true
	case err != nil:
		r.log("ERROR: ", "Checking for jobs... error", "runner", shorten(r.token), "status", err)
		return nil, true // the real program counts some of these errors before it gives up
	}
	switch resp.code {
	case http.StatusCreated:
		var out work
		if err := json.Unmarshal(resp.text, &out); err != nil {
			r.log("ERROR: ", "Checking for jobs... error", "runner", shorten(r.token), "status", err)
			return nil, true
		}
		r.info("Checking for jobs... received",
			"job", out.ID, "repo_url", stripCredentials(out.GitInfo.RepoURL), "runner", shorten(r.token))
		return &out, true
	case http.StatusNoContent:
		r.lastUpdate = resp.header.Get("X-Gitlab-Last-Update")
		return nil, true
	case http.StatusForbidden:
		r.log("ERROR: ", "Checking for jobs... forbidden", "runner", shorten(r.token), "status", resp.status)
		return nil, false
	default:
		r.log("WARNING: ", "Checking for jobs... failed", "runner", shorten(r.token), "status", resp.status)
		return nil, true
	}
}

// stripCredentials removes the credentials from the URL of a repository.
func stripCredentials(address string) string {
	scheme, rest, found := strings.Cut(address, "://")
	index := strings.LastIndex(rest, "@")
	if !found || index < 0 {
		return address
	}
	return scheme + "://" + rest[index+1:]
}

// update reports the state of a job. It returns false if the server has ended the job.
func (r *runner) update(ctx context.Context, w *work, state, failure string, code int) (isActive bool, err error) {
	body := map[string]any{"info": r.versionInfo(), "token": w.Token, "state": state}
	if failure != "" {
		body["failure_reason"] = failure
	}
	if code != 0 {
		body["exit_code"] = code
	}
	resp, err := r.client.sendJSON(ctx, http.MethodPut, "jobs/"+strconv.FormatInt(w.ID, 10), body)
	return err != nil || !resp.isAbandoned(), err
}

// isAbandoned reports whether the server has ended the job.
func (r response) isAbandoned() bool {
	state := r.header.Get("Job-Status")
	return r.code == http.StatusForbidden || r.code == http.StatusNotFound || state == "canceled" || state == "failed"
}

// appendLog appends text to the job's log at the server, and returns the size of the log at the
// server. If the server has another size than offset, for example after a call whose response was
// lost, its header Range names the size.
func (r *runner) appendLog(ctx context.Context, w *work, text []byte, offset int) (size int, isActive bool, err error) {
	header := http.Header{
		"Content-Type": {"text/plain"}, "Job-Token": {w.Token},
		"Content-Range": {fmt.Sprintf("%d-%d", offset, offset+len(text)-1)},
	}
	path := "jobs/" + strconv.FormatInt(w.ID, 10) + "/trace?debug_trace=false"
	resp, err := r.client.send(ctx, http.MethodPatch, path, header, text)
	switch {
	case err != nil:
		return offset, true, err
	case resp.isAbandoned():
		return offset, false, nil
	case resp.code == http.StatusRequestedRangeNotSatisfiable:
		var size int
		if _, err := fmt.Sscanf(resp.header.Get("Range"), "0-%d", &size); err != nil || size > offset+len(text) {
			return offset, true, fmt.Errorf("append to the log: range mismatch: Range is %q", resp.header.Get("Range"))
		}
		return size, true, fmt.Errorf("append to the log: range mismatch: the server has %d bytes, want %d", size, offset)
	case resp.code != http.StatusAccepted:
		return offset, true, fmt.Errorf("append to the log: %s", resp.status)
	}
	return offset + len(text), true, nil
}
