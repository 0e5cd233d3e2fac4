// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"net/http"
	"regexp"
	"strings"

	"github.com/getkin/kin-openapi/routers"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"
)

// BasePath is where the API is.
const BasePath = "/api/hyperfleet/v1"

// mux is the mux of the generated routes, and of those that name the same resources in
// other ways: each of them is checked against the contract before anything of it is read.
type mux struct {
	*http.ServeMux

	server *Server
	errs   []error
}

// byPlural and byParent turn a pattern of /resources into that of a kind's collection, and
// into that of a collection below a parent.
func byPlural(pattern string) string { return strings.Replace(pattern, "/resources", "/{plural}", 1) }

func byParent(pattern string) string {
	return strings.NewReplacer("/resources", "/{plural}/{id}/{children}", "/{id}", "/{childID}").Replace(pattern)
}

// HandleFunc registers a route by all ways to name its resources.
func (m *mux) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	m.handle(pattern, handler)

	if strings.Contains(pattern, BasePath+"/resources") {
		m.handle(byPlural(pattern), handler)
		m.handle(byParent(pattern), handler)
	}
}

func (m *mux) handle(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	route, err := m.server.routeOf(pattern)
	if err != nil {
		m.errs = append(m.errs, err)

		return
	}

	m.ServeMux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		if err := m.server.admit(r, route); err != nil {
			m.server.fail(w, r, err)

			return
		}

		handler(w, r)
	})
}

// ServeHTTP answers what has no route, and methods that a route does not have, with a
// problem.
func (m *mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if allow, wrong := wrongMethod(r); wrong {
		m.server.fail(w, r, &Error{Code: CodeMethod, Detail: "the route takes " + allow, Allow: allow})

		return
	}

	handler, pattern := m.Handler(r)
	if pattern != "" {
		m.ServeMux.ServeHTTP(w, r)

		return
	}

	said := &silent{header: http.Header{}}
	handler.ServeHTTP(said, r)

	if said.status == http.StatusMethodNotAllowed {
		allow := said.header.Get("Allow")
		m.server.fail(w, r, &Error{Code: CodeMethod, Detail: "the route takes " + allow, Allow: allow})

		return
	}

	m.server.fail(w, r, problem(CodeNoRoute, "the API has no route %s", r.URL.Path))
}

// wrongMethod finds requests that the patterns would take for ones of a kind or of
// children: POST to statuses is not the creation of a child.
func wrongMethod(r *http.Request) (allow string, wrong bool) {
	rest, found := strings.CutPrefix(r.URL.Path, BasePath+"/")
	if !found {
		return "", false
	}

	parts := strings.Split(rest, "/")
	last := parts[len(parts)-1]

	switch {
	case len(parts) == 1 && last == "changes":
		allow = "GET"
	case len(parts) == 2 && parts[0] == "leases":
		allow = "PUT"
	case (len(parts) == 3 || len(parts) == 5) && last == "statuses":
		allow = "GET, PUT"
	case (len(parts) == 3 || len(parts) == 5) && last == "force-delete":
		allow = "POST"
	default:
		return "", false
	}

	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}

	return allow, !strings.Contains(allow, method)
}

// silent takes what the mux says where it has no route.
type silent struct {
	header http.Header
	status int
}

// Header gives the headers.
func (s *silent) Header() http.Header { return s.header }

// Write drops the text.
func (s *silent) Write(data []byte) (int, error) { return len(data), nil }

// WriteHeader keeps the status.
func (s *silent) WriteHeader(status int) { s.status = status }

var variable = regexp.MustCompile(`{[^}]*}`)

// pathOf is a route's path as metrics have it: ids are -, and so are kinds of a request
// that does not name any that there are (nil).
func pathOf(r *http.Request, route *routers.Route) string {
	return BasePath + variable.ReplaceAllStringFunc(route.Path, func(name string) string {
		if r != nil && (name == "{plural}" || name == "{children}") {
			return r.PathValue(name[1 : len(name)-1])
		}

		return "-"
	})
}

// admit is what every request goes through once its route is known.
func (s *Server) admit(r *http.Request, route *routers.Route) error {
	name := route.Method + " " + route.Path
	setRoute(r.Context(), name)

	span := trace.SpanFromContext(r.Context())
	span.SetName(name)
	span.SetAttributes(attribute.String("http.route", route.Path))

	about(r.Context()).path = pathOf(nil, route)

	at, err := s.scopeOf(r)
	if err != nil {
		return err
	}

	about(r.Context()).scope, about(r.Context()).path = at, pathOf(r, route)

	if err := s.authorize(r, route); err != nil {
		return err
	}

	if route.Method == http.MethodPut && strings.HasSuffix(route.Path, "/statuses") {
		r.Body = http.MaxBytesReader(nil, r.Body, maxReport)
	}

	return fits(r, route)
}
