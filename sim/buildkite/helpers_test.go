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

// response is a response of the simulator.
type response struct {
	code   int
	header http.Header
	text   string
	body   map[string]any
}

// sendRequest sends a request below /v3 with a token.
func sendRequest(t *testing.T, server *buildkitetest.Server, token, method, path, body string, header ...string) response {
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
	out := response{code: resp.StatusCode, header: resp.Header, text: string(raw)}
	_ = json.Unmarshal(raw, &out.body)
	return out
}

// registerStack registers a stack and returns a function that sends its requests.
func registerStack(t *testing.T, server *buildkitetest.Server) func(method, path, body string) response {
	t.Helper()
	got := sendRequest(t, server, buildkitetest.Token, "POST", "/stacks/register", newRegistration("test", "custom", "default"))
	if got.code != http.StatusCreated {
		t.Fatalf("register: %d %s", got.code, got.text)
	}
	return func(method, path, body string) response {
		t.Helper()
		return sendRequest(t, server, buildkitetest.Token, method, "/stacks/test"+path, body)
	}
}

func newRegistration(key, kind, queue string) string {
	return `{"key":"` + key + `","type":"` + kind + `","queue_key":"` + queue + `","metadata":{"a":"b"}}`
}

// reserveJob reserves a job and returns its job acquisition token.
func reserveJob(t *testing.T, call func(method, path, body string) response, job string) string {
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

// connectAgent registers and connects an agent and returns the token of its session.
func connectAgent(t *testing.T, server *buildkitetest.Server, token string) string {
	t.Helper()
	got := sendRequest(t, server, token, "POST", "/register",
		`{"name":"a","hostname":"h","os":"linux","arch":"amd64","script_eval_enabled":true,"ignore_in_dispatches":true,`+
			`"version":"3.130.0","build":"1","meta_data":["queue=default"],"features":["acquire-job"]}`)
	session, _ := got.body["access_token"].(string)
	if got.code != http.StatusOK || session == "" {
		t.Fatalf("register: %d %s", got.code, got.text)
	}
	if got := sendRequest(t, server, session, "POST", "/connect", ""); got.code != http.StatusOK {
		t.Fatalf("connect: %d %s", got.code, got.text)
	}
	return session
}

// acquireJob acquires a job as an agent, and returns the token of its session and the response.
func acquireJob(t *testing.T, server *buildkitetest.Server, call func(method, path, body string) response, job control.Job) (string, response) {
	t.Helper()
	session := connectAgent(t, server, reserveJob(t, call, job.Key))
	got := sendRequest(t, server, session, "PUT", "/jobs/"+job.Key+"/acquire", "", lockHeader, "1")
	if got.code != http.StatusOK {
		t.Fatalf("acquire: %d %s", got.code, got.text)
	}
	return session, got
}

const lockHeader = "X-Buildkite-Lock-Acquire-Job"
