// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"unicode"
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
		err := NewError("get x", &http.Response{
			StatusCode: http.StatusNotFound, Header: http.Header{"Content-Type": {contentType}},
			Body: io.NopCloser(strings.NewReader(body)),
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
