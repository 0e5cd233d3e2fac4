// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pvetest

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
)

// Root calls the API as root, as the commands on a node do.
type Root struct {
	t      testing.TB
	server *pve.Server
	header http.Header
}

// LogIn logs in as root.
func LogIn(t testing.TB, s *pve.Server) *Root {
	t.Helper()
	r := &Root{t: t, server: s, header: http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}}
	var session struct {
		Data struct{ Ticket, CSRFPreventionToken string } `json:"data"`
	}
	login := url.Values{"username": {pve.RootUser}, "password": {pve.DefaultPassword}}
	if err := json.Unmarshal(r.Do(http.MethodPost, "/access/ticket", login), &session); err != nil {
		t.Fatal(err)
	}
	r.header.Set("Cookie", "PVEAuthCookie="+session.Data.Ticket)
	r.header.Set("Csrfpreventiontoken", session.Data.CSRFPreventionToken)
	return r
}

// Do makes a call and returns the response. The test fails if the call is refused.
func (r *Root) Do(method, path string, form url.Values) []byte {
	r.t.Helper()
	target, body := r.server.URL()+"/api2/json"+path, form.Encode()
	if method == http.MethodDelete && body != "" {
		target, body = target+"?"+body, ""
	}
	request, err := http.NewRequestWithContext(r.t.Context(), method, target, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	request.Header = r.header.Clone()
	response, err := r.server.HTTPClient().Do(request)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	out, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		r.t.Fatalf("%s %s: %s, %v", method, path, response.Status, err)
	}
	return out
}
