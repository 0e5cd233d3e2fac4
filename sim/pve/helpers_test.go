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
	"time"

	"github.com/kdomanski/iso9660"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/cli"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
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

// testISO is an image with plain names only, labelled cidata.
func testISO(t *testing.T, files map[string]string) []byte {
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

// p holds the parameters of a call.
type p map[string]string

// answer is what came back.
type answer struct {
	status int
	reason string // of the status line
	data   any
	body   map[string]any
	text   string // in place of a body of JSON
}

// api is a raw client, so that tests see the exact bytes of a response.
type api struct {
	t      *testing.T
	s      *pve.Server
	header http.Header
	client *http.Client
}

func newAPI(t *testing.T, s *pve.Server) *api {
	t.Helper()
	a := &api{t: t, s: s, client: s.HTTPClient(), header: http.Header{}}
	t.Cleanup(a.client.CloseIdleConnections)
	return a.token(pve.DefaultTokenID, pve.DefaultSecret)
}

func (a *api) token(id, secret string) *api {
	out := *a
	out.header = http.Header{"Authorization": {"PVEAPIToken=" + id + "=" + secret}}
	return &out
}

// root logs in as root with a ticket.
func (a *api) root() *api {
	a.t.Helper()
	return a.login(pve.RootUser, pve.DefaultPassword)
}

func (a *api) login(user, password string) *api {
	a.t.Helper()
	got := a.ok("POST", "/access/ticket", p{"username": user, "password": password})
	m, _ := got.(map[string]any)
	out := *a
	out.header = http.Header{
		"Cookie": {"PVEAuthCookie=" + fmt.Sprint(m["ticket"])}, "Csrfpreventiontoken": {fmt.Sprint(m["CSRFPreventionToken"])},
	}
	return &out
}

// do makes a call. For GET and DELETE the parameters are in the query, otherwise in a form.
func (a *api) do(method, path string, params p) answer {
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

func (a *api) send(method, path, ctype string, body io.Reader) answer {
	a.t.Helper()
	got, err := a.try(method, path, ctype, body)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	return got
}

func (a *api) try(method, path, ctype string, body io.Reader) (answer, error) {
	return a.tryFor(context.Background(), method, path, ctype, body)
}

// tryFor makes a call that ends with the context.
func (a *api) tryFor(ctx context.Context, method, path, ctype string, body io.Reader) (answer, error) {
	req, err := http.NewRequestWithContext(ctx, method, a.s.URL()+"/api2/json"+path, body)
	if err != nil {
		return answer{}, err
	}
	maps.Copy(req.Header, a.header)
	if ctype != "" {
		req.Header.Set("Content-Type", ctype)
	}
	res, err := a.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	out := answer{status: res.StatusCode, reason: strings.TrimPrefix(res.Status, fmt.Sprintf("%d ", res.StatusCode))}
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

// ok makes a call that must succeed.
func (a *api) ok(method, path string, params p) any {
	a.t.Helper()
	got := a.do(method, path, params)
	if got.status != http.StatusOK {
		a.t.Fatalf("%s %s %v: %d %s %v", method, path, params, got.status, got.reason, got.body)
	}
	return got.data
}

// task makes a call that starts a task, and returns the exit status of the task.
func (a *api) task(method, path string, params p) string {
	a.t.Helper()
	return a.wait(a.ok(method, path, params))
}

func (a *api) wait(upid any) string {
	a.t.Helper()
	id, ok := upid.(string)
	if !ok || !strings.HasPrefix(id, "UPID:") {
		a.t.Fatalf("no UPID: %v", upid)
	}
	var exit string
	eventually(a.t, "task "+id, func() bool {
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

// must makes a call whose task must succeed.
func (a *api) must(method, path string, params p) {
	a.t.Helper()
	if exit := a.task(method, path, params); exit != "OK" {
		a.t.Fatalf("%s %s: task ended with %q", method, path, exit)
	}
}

// clone clones VM newid from the template on pve1.
func (a *api) clone(newid string, more p) {
	a.t.Helper()
	params := p{"newid": newid, "name": "vm-" + newid}
	for k, v := range more {
		params[k] = v
		if v == "" {
			delete(params, k)
		}
	}
	a.must("POST", "/nodes/pve1/qemu/9001/clone", params)
}

func (a *api) config(vmid string) map[string]any {
	a.t.Helper()
	m, _ := a.ok("GET", "/nodes/pve1/qemu/"+vmid+"/config", nil).(map[string]any)
	return m
}

// upload sends a file as the last part of a form.
func (a *api) upload(node, storage, content, name string, data []byte) answer {
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

// eventually waits until a condition is true, because the simulator works in goroutines.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const patience = time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s", what)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// start starts the default cluster and returns a client with the operator's token.
func start(t *testing.T, change func(*pve.Model), opts ...pve.Option) *api {
	t.Helper()
	m := pve.DefaultModel()
	m.StatusLag = 0
	if change != nil {
		change(&m)
	}
	return newAPI(t, pvetest.New(t, m, opts...))
}
