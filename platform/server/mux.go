// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
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

// refuseOthers registers the methods that the contract's paths do not have, each by its path:
// POST to statuses is not the creation of a child, which a pattern of that would take it for.
func (m *mux) refuseOthers() {
	// A pattern of GET is one of HEAD, too.
	methods := []string{
		http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace,
	}

	for path, item := range m.server.contract.Paths.Map() {
		allowed := slices.Sorted(maps.Keys(item.Operations()))
		allow := strings.Join(allowed, ", ")

		for _, method := range methods {
			if slices.Contains(allowed, method) {
				continue
			}

			m.ServeMux.HandleFunc(method+" "+BasePath+path, func(w http.ResponseWriter, r *http.Request) {
				m.server.fail(w, r, &Error{Code: CodeMethod, Detail: "the route takes " + allow, Allow: allow})
			})
		}
	}
}

// ServeHTTP answers what has no route with a problem.
func (m *mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, pattern := m.Handler(r); pattern == "" {
		m.server.fail(w, r, problem(CodeNoRoute, "the API has no route %s", r.URL.Path))

		return
	}

	m.ServeMux.ServeHTTP(w, r)
}

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
