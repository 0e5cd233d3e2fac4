// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	template "github.com/DataDog/datadog-agent/pkg/template/html"
)

// rootPath is the path above the API's versions.
const rootPath = "/api/hyperfleet"

//nolint:gochecknoglobals // it is parsed once
var documentPage = template.Must(template.New("openapi").Parse(`<!doctype html>
<meta charset="utf-8"><title>HyperFleet API</title>
<h1>HyperFleet API</h1>
<p>OpenAPI document: <a href="openapi">openapi</a></p>
<table>{{range .}}<tr><td>{{.Method}}<td><code>{{.Path}}</code><td>{{.Summary}}</tr>
{{end}}</table>
`))

type documentRow struct{ Method, Path, Summary string }

// serveDocument responds to requests for the description of the API, which need no token. It
// returns false if the request is for something else.
func (s *Server) serveDocument(w http.ResponseWriter, r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}

	switch r.URL.Path {
	case rootPath:
		_ = response{status: http.StatusOK, body: map[string]string{
			"id": "hyperfleet", "kind": "API", "href": rootPath, "version": s.contract.Info.Version,
		}}.write(w, r)
	case BasePath + "/openapi":
		_ = response{status: http.StatusOK, body: s.contract}.write(w, r)
	case BasePath + "/openapi.html":
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		w.Header().Set("Content-Security-Policy", "default-src 'none'")
		_ = documentPage.Execute(w, s.listDocumentRows())
	default:
		return false
	}

	setRoute(r.Context(), "GET "+strings.TrimPrefix(r.URL.Path, BasePath))

	return true
}

func (s *Server) listDocumentRows() []documentRow {
	var out []documentRow

	paths := s.contract.Paths.Map()

	for _, path := range slices.Sorted(maps.Keys(paths)) {
		operations := paths[path].Operations()
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			out = append(out, documentRow{method, BasePath + path, operations[method].Summary})
		}
	}

	return out
}
