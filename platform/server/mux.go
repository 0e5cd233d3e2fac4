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

// BasePath is the path of the API.
const BasePath = "/api/hyperfleet/v1"

// mux registers the generated routes, and the additional routes that name the same resources. It
// validates each request against the OpenAPI document before the handler reads it.
type mux struct {
	*http.ServeMux

	server *Server
	errs   []error
}

// pluralPattern and nestedPattern convert a pattern of /resources to the pattern for the collection
// of a kind, and for a collection below a parent.
func pluralPattern(pattern string) string {
	return strings.Replace(pattern, "/resources", "/{plural}", 1)
}

func nestedPattern(pattern string) string {
	return strings.NewReplacer("/resources", "/{plural}/{id}/{children}", "/{id}", "/{childID}").Replace(pattern)
}

// HandleFunc registers a route with all paths that name its resources.
func (m *mux) HandleFunc(pattern string, handler func(http.ResponseWriter, *http.Request)) {
	patterns := []string{pattern}
	if strings.Contains(pattern, BasePath+"/resources") {
		patterns = append(patterns, pluralPattern(pattern), nestedPattern(pattern))
	}

	for _, pattern := range patterns {
		route, err := m.server.findRoute(pattern)
		if err != nil {
			m.errs = append(m.errs, err)

			continue
		}

		m.ServeMux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if err := m.server.prepareRequest(r, route); err != nil {
				m.server.writeError(w, r, err)

				return
			}

			handler(w, r)
		})
	}
}

// registerDisallowedMethods registers the methods that the paths of the OpenAPI document do not
// have. Otherwise a more general pattern could match. For example, POST to .../statuses would match
// the creation of a child.
func (m *mux) registerDisallowedMethods() {
	// A pattern for GET also matches HEAD.
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
				m.server.writeError(w, r, &Error{Code: CodeMethod, Detail: "the route allows " + allow, Allow: allow})
			})
		}
	}
}

// ServeHTTP responds with a problem if there is no route for the request.
func (m *mux) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, pattern := m.Handler(r); pattern == "" {
		m.server.writeError(w, r, newProblem(CodeNoRoute, "the API has no route %s", r.URL.Path))

		return
	}

	m.ServeMux.ServeHTTP(w, r)
}

var pathVariable = regexp.MustCompile(`{[^}]*}`)

// metricsPath returns a route's path for metrics, with the request's kinds. IDs are replaced by "-". Call it only if the kinds
// exist, because each path has metrics of its own.
func metricsPath(r *http.Request, route *routers.Route) string {
	return BasePath + pathVariable.ReplaceAllStringFunc(route.Path, func(name string) string {
		if name == "{plural}" || name == "{children}" {
			return r.PathValue(name[1 : len(name)-1])
		}

		return "-"
	})
}

// metricsPathWithoutKinds returns a route's path for metrics. IDs and kinds are replaced by "-".
func metricsPathWithoutKinds(route *routers.Route) string {
	return BasePath + pathVariable.ReplaceAllLiteralString(route.Path, "-")
}

// prepareRequest runs after the route of a request is known: it parses the scope, checks the
// caller's roles, and validates the request.
func (s *Server) prepareRequest(r *http.Request, route *routers.Route) error {
	name := route.Method + " " + route.Path
	setRoute(r.Context(), name)

	span := trace.SpanFromContext(r.Context())
	span.SetName(name)
	span.SetAttributes(attribute.String("http.route", route.Path))

	info := requestFromContext(r.Context())
	info.path = metricsPathWithoutKinds(route) // until parseScope has found the kinds

	target, err := s.parseScope(r)
	if err != nil {
		return err
	}

	info.scope, info.path = target, metricsPath(r, route)

	if err := s.authorize(r, route); err != nil {
		return err
	}

	if route.Method == http.MethodPut && strings.HasSuffix(route.Path, "/statuses") {
		r.Body = http.MaxBytesReader(nil, r.Body, maxReportSize)
	}

	return validateRequest(r, route)
}
