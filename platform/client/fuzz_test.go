// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"unicode"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
)

// FuzzProblem checks that only a problem with the code HYPERFLEET-NTF-001 means that a resource
// does not exist, and that the text of the error has one line.
func FuzzProblem(f *testing.F) {
	const kind = "application/problem+json"

	for _, body := range []string{
		"", "null", "[]", "{}", "<html>", `{"status":404,"code":"HYPERFLEET-NTF-001","title":"a\u0000b"}`,
		`{"status":404,"code":"HYPERFLEET-NTF-000"}`, `{"status":200,"code":"HYPERFLEET-NTF-001"}`,
		`{"status":404,"code":"HYPERFLEET-NTF-001"`, `{"status":"404","code":"HYPERFLEET-NTF-001"}`,
	} {
		f.Add(kind, body)
		f.Add("text/html", body)
	}

	f.Fuzz(func(t *testing.T, contentType, body string) {
		err := newError("get x", &Response{
			Status: http.StatusNotFound, Body: []byte(body), header: http.Header{"Content-Type": {contentType}},
		})

		var decoded struct {
			Status int    `json:"status"`
			Code   string `json:"code"`
		}

		well := json.NewDecoder(strings.NewReader(body)).Decode(&decoded) == nil && decoded.Status == http.StatusNotFound &&
			IsNoResource(decoded.Code)

		if errors.Is(err, ErrNotFound) && !well {
			t.Errorf("%q says that the resource is gone", body)
		}

		if strings.ContainsFunc(err.Error(), unicode.IsControl) && !strings.ContainsFunc(err.Error(), func(r rune) bool {
			return r >= 0x80 && unicode.IsControl(r)
		}) {
			t.Errorf("error %q", err)
		}
	})
}

// FuzzResolve inserts arbitrary values of an event into a path. The request must stay at the fleet API,
// below the path of the task file.
func FuzzResolve(f *testing.F) {
	for _, value := range []string{
		"a", "..", "../leases/x", "%2e%2e/x", "%252e", "a?b=c", "a#b", "//host/x", "@host", "\\\\host", "a/../../..", "\x00", "%", "a b", "ä",
		"x/%2E%2E/%2e%2e/%2e%2e/etc",
	} {
		f.Add(value)
	}

	client, err := New(platform.APIClient{BaseURL: "http://fleet.example:8000"}, Options{})
	if err != nil {
		f.Fatal(err)
	}

	f.Fuzz(func(t *testing.T, value string) {
		target, err := client.resolve("clusters/" + value)
		if err != nil {
			return
		}

		if target.Scheme != "http" || target.Host != "fleet.example:8000" || target.User != nil ||
			!strings.HasPrefix(target.Path, "/api/hyperfleet/v1/clusters") {
			t.Errorf("%q resolves to %s", value, target)
		}
	})
}
