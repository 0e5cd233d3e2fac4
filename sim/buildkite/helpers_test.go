// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// answer is a response of the simulator.
type answer struct {
	code   int
	header http.Header
	text   string
	body   map[string]any
}

// do makes a call below /v3 with a token.
func do(t *testing.T, server *buildkitetest.Server, token, method, path, body string, header ...string) answer {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, server.Endpoint+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Token "+token)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	raw, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	out := answer{code: resp.StatusCode, header: resp.Header, text: string(raw)}
	_ = json.Unmarshal(raw, &out.body)
	return out
}

// stack registers a stack and returns a function that makes its calls.
func stack(t *testing.T, server *buildkitetest.Server) func(method, path, body string) answer {
	t.Helper()
	got := do(t, server, buildkitetest.Token, "POST", "/stacks/register", registration("test", "custom", "default"))
	if got.code != http.StatusCreated {
		t.Fatalf("register: %d %s", got.code, got.text)
	}
	return func(method, path, body string) answer {
		t.Helper()
		return do(t, server, buildkitetest.Token, method, "/stacks/test"+path, body)
	}
}

func registration(key, kind, queue string) string {
	return `{"key":"` + key + `","type":"` + kind + `","queue_key":"` + queue + `","metadata":{"a":"b"}}`
}

// jat reserves a job and returns its job acquisition token.
func jat(t *testing.T, call func(method, path, body string) answer, job string) string {
	t.Helper()
	if got := call("PUT", "/scheduled-jobs/batch-reserve", `{"job_uuids":["`+job+`"],"reservation_expiry_seconds":60}`); got.code != http.StatusOK {
		t.Fatalf("reserve: %d %s", got.code, got.text)
	}
	got := call("POST", "/job-acquisition-tokens", `{"job_uuids":["`+job+`"],"token_lifetime_seconds":60}`)
	list, _ := got.body["job_acquisition_tokens"].([]any)
	if got.code != http.StatusCreated || len(list) != 1 {
		t.Fatalf("acquisition token: %d %s", got.code, got.text)
	}
	made, _ := list[0].(map[string]any)
	token, _ := made["job_acquisition_token"].(string)
	return token
}

// join registers and connects an agent and returns the token of its session.
func join(t *testing.T, server *buildkitetest.Server, token string) string {
	t.Helper()
	got := do(t, server, token, "POST", "/register",
		`{"name":"a","hostname":"h","os":"linux","arch":"amd64","script_eval_enabled":true,"ignore_in_dispatches":true,`+
			`"version":"3.130.0","build":"1","meta_data":["queue=default"],"features":["acquire-job"]}`)
	session, _ := got.body["access_token"].(string)
	if got.code != http.StatusOK || session == "" {
		t.Fatalf("register: %d %s", got.code, got.text)
	}
	if got := do(t, server, session, "POST", "/connect", ""); got.code != http.StatusOK {
		t.Fatalf("connect: %d %s", got.code, got.text)
	}
	return session
}

// acquire acquires a job as an agent, and returns the token of its session and the response.
func acquire(t *testing.T, server *buildkitetest.Server, call func(method, path, body string) answer, job control.Job) (string, answer) {
	t.Helper()
	session := join(t, server, jat(t, call, job.Key))
	got := do(t, server, session, "PUT", "/jobs/"+job.Key+"/acquire", "", lock, "1")
	if got.code != http.StatusOK {
		t.Fatalf("acquire: %d %s", got.code, got.text)
	}
	return session, got
}

const lock = "X-Buildkite-Lock-Acquire-Job"
