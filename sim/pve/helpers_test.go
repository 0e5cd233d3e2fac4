// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/kdomanski/iso9660"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/cli"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// TestMain lets the test binary act as the program of an exec guest, and as pvesim, so that a test
// can kill it.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asProgram {
		cmd := cli.New()
		cmd.SetArgs(os.Args[2:])
		if err := cmd.Execute(); err != nil {
			fmt.Println(err)
		}
		return
	}
	if len(os.Args) == 5 && os.Args[1] == "--config" && os.Args[3] == "--root" {
		os.Exit(guestProgram(os.Args[2], os.Args[4]))
	}
	os.Exit(m.Run())
}

// newPlainISO returns an image with plain names only, labelled cidata.
func newPlainISO(t *testing.T, files map[string]string) []byte {
	t.Helper()
	w, err := iso9660.NewWriter()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = w.Cleanup() }()
	for name, text := range files {
		if err := w.AddFile(bytes.NewReader([]byte(text)), name); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := w.WriteTo(&out, "cidata"); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// formData has the parameters of a call.
type formData map[string]string

// response is a response of the simulator.
type response struct {
	status int
	reason string // of the status line
	data   any
	body   map[string]any
	text   string // in place of a body of JSON
}

// rawClient is an HTTP client, so that tests see the exact bytes of a response.
type rawClient struct {
	t      *testing.T
	s      *pve.Server
	header http.Header
	client *http.Client
}

func newRawClient(t *testing.T, s *pve.Server) *rawClient {
	t.Helper()
	a := &rawClient{t: t, s: s, client: s.HTTPClient(), header: http.Header{}}
	t.Cleanup(a.client.CloseIdleConnections)
	return a.withToken(pve.DefaultTokenID, pve.DefaultSecret)
}

func (a *rawClient) withToken(id, secret string) *rawClient {
	out := *a
	out.header = http.Header{"Authorization": {"PVEAPIToken=" + id + "=" + secret}}
	return &out
}

// asRoot logs in as root with a ticket.
func (a *rawClient) asRoot() *rawClient {
	a.t.Helper()
	return a.logIn(pve.RootUser, pve.DefaultPassword)
}

func (a *rawClient) logIn(user, password string) *rawClient {
	a.t.Helper()
	out := *a
	got := a.mustDo("POST", "/access/ticket", formData{"username": user, "password": password})
	m, _ := got.(map[string]any)
	out.header = http.Header{
		"Cookie": {"PVEAuthCookie=" + fmt.Sprint(m["ticket"])}, "Csrfpreventiontoken": {fmt.Sprint(m["CSRFPreventionToken"])},
	}
	return &out
}

// do sends a request. For GET and DELETE the parameters are in the query, otherwise in a form.
func (a *rawClient) do(method, path string, params formData) response {
	a.t.Helper()
	form := url.Values{}
	for k, v := range params {
		form.Set(k, v)
	}
	var body io.Reader
	ctype := ""
	if len(form) > 0 {
		if method == http.MethodGet || method == http.MethodDelete {
			path += "?" + form.Encode()
		} else {
			body, ctype = strings.NewReader(form.Encode()), "application/x-www-form-urlencoded"
		}
	}
	return a.send(method, path, ctype, body)
}

func (a *rawClient) send(method, path, ctype string, body io.Reader) response {
	a.t.Helper()
	got, err := a.trySend(method, path, ctype, body)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return got
}

func (a *rawClient) trySend(method, path, ctype string, body io.Reader) (response, error) {
	return a.trySendWithContext(context.Background(), method, path, ctype, body)
}

// trySendWithContext sends a request that ends with the context.
func (a *rawClient) trySendWithContext(ctx context.Context, method, path, ctype string, body io.Reader) (response, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.s.URL()+"/api2/json"+path, body)
	if err != nil {
		return response{}, err
	}
	if path != "/access/ticket" { // which a caller with a token cannot get
		maps.Copy(req.Header, a.header)
	}
	if ctype != "" {
		req.Header.Set("Content-Type", ctype)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return response{}, err
	}
	defer func() { _ = res.Body.Close() }()
	out := response{status: res.StatusCode, reason: strings.TrimPrefix(res.Status, fmt.Sprintf("%d ", res.StatusCode))}
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		return out, err
	}
	if len(raw) == 0 || res.Header.Get("Content-Type") == "" {
		out.text = string(raw)
		return out, nil
	}
	if err := json.Unmarshal(raw, &out.body); err != nil {
		return out, fmt.Errorf("body %q: %w", raw, err)
	}
	out.data = out.body["data"]
	return out, nil
}

// mustDo sends a request that must succeed.
func (a *rawClient) mustDo(method, path string, params formData) any {
	a.t.Helper()
	got := a.do(method, path, params)
	if got.status != http.StatusOK {
		a.t.Fatalf("%s %s %v: %d %s %v", method, path, params, got.status, got.reason, got.body)
	}
	return got.data
}

// runTask sends a request that starts a task, and returns the exit status of the task.
func (a *rawClient) runTask(method, path string, params formData) string {
	a.t.Helper()
	return a.waitForTask(a.mustDo(method, path, params))
}

func (a *rawClient) waitForTask(upid any) string {
	a.t.Helper()
	id, ok := upid.(string)
	if !ok || !strings.HasPrefix(id, "UPID:") {
		a.t.Fatalf("no UPID: %v", upid)
	}
	var exit string
	timing.WaitUntil(a.t, "task "+id, func() bool {
		for _, t := range a.s.Snapshot().Tasks {
			if t.UPID == id && t.Exit != "" {
				exit = t.Exit
				return true
			}
		}
		return false
	})
	return exit
}

// mustRunTask sends a request whose task must succeed.
func (a *rawClient) mustRunTask(method, path string, params formData) {
	a.t.Helper()
	if exit := a.runTask(method, path, params); exit != "OK" {
		a.t.Fatalf("%s %s: task ended with %q", method, path, exit)
	}
}

// clone clones VM newid from the template on pve1.
func (a *rawClient) clone(newid string, more formData) {
	a.t.Helper()
	params := formData{"newid": newid, "name": "vm-" + newid}
	for k, v := range more {
		params[k] = v
		if v == "" {
			delete(params, k)
		}
	}
	a.mustRunTask("POST", "/nodes/pve1/qemu/9001/clone", params)
}

func (a *rawClient) getConfig(vmid string) map[string]any {
	a.t.Helper()
	m, _ := a.mustDo("GET", "/nodes/pve1/qemu/"+vmid+"/config", nil).(map[string]any)
	return m
}

// upload sends a file as the last part of a form.
func (a *rawClient) upload(node, storage, content, name string, data []byte) response {
	a.t.Helper()
	var b bytes.Buffer
	w := multipart.NewWriter(&b)
	_ = w.WriteField("content", content)
	f, err := w.CreateFormFile("filename", name)
	if err != nil {
		a.t.Fatal(err)
	}
	_, _ = f.Write(data)
	_ = w.Close()
	return a.send("POST", "/nodes/"+node+"/storage/"+storage+"/upload", w.FormDataContentType(), &b)
}

// startCluster starts the default cluster and returns a client with the operator's token.
func startCluster(t *testing.T, change func(*pve.Model), opts ...pve.Option) *rawClient {
	t.Helper()
	m := pve.DefaultModel()
	m.StatusLag = 0
	if change != nil {
		change(&m)
	}
	return newRawClient(t, pvetest.New(t, m, opts...))
}
