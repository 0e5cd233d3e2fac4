// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/routers"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// BasePath is the path of the API.
const BasePath = "/api/hyperfleet/v1"

// operation is an operation of the OpenAPI document.
type operation struct {
	handle func(*http.Request) (response, error)
	// roles are the roles of which a caller needs one to write. Every role permits to read.
	roles []string
}

// operationPutLease is also permitted to the adapter that owns the lease.
const operationPutLease = "putLease"

// listOperations returns the operations by their IDs. The three paths to a resource have the same operations. The
// request's scope says which resources the path names.
func (s *Server) listOperations() map[string]operation {
	writers, admins := []string{platform.RoleWriter, platform.RoleAdmin}, []string{platform.RoleAdmin}

	list, create := operation{s.listResources, nil}, operation{s.createResource, writers}
	get, patch, remove := operation{s.getResource, nil}, operation{s.patchResource, writers}, operation{s.deleteResource, writers}
	forceDelete := operation{s.forceDeleteResource, admins}
	listStatuses, putStatus := operation{s.listStatuses, nil}, operation{s.putStatus, []string{platform.RoleAdapter}}

	return map[string]operation{
		"listResources": list, "listKind": list, "listChildren": list,
		"createResource": create, "createKind": create, "createChild": create,
		"getResource": get, "getKind": get, "getChild": get,
		"patchResource": patch, "patchKind": patch, "patchChild": patch,
		"deleteResource": remove, "deleteKind": remove, "deleteChild": remove,
		"forceDeleteResource": forceDelete, "forceDeleteKind": forceDelete, "forceDeleteChild": forceDelete,
		"listResourceStatuses": listStatuses, "listKindStatuses": listStatuses, "listChildStatuses": listStatuses,
		"putResourceStatus": putStatus, "putKindStatus": putStatus, "putChildStatus": putStatus,
		"listChanges":     {s.listChanges, nil},
		operationPutLease: {s.putLease, []string{platform.RoleSentinel}},
	}
}

// registerRoutes registers the operations of the OpenAPI document. It also registers the methods that a path does not
// have. Otherwise a more general pattern could match. For example, POST to .../statuses would match the creation of a child.
func (s *Server) registerRoutes() error {
	// A pattern for GET also matches HEAD.
	methods := []string{
		http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace,
	}

	var problems []error

	operations := s.listOperations()

	for path, item := range s.contract.Paths.Map() {
		declared := item.Operations()
		allowed := strings.Join(slices.Sorted(maps.Keys(declared)), ", ")

		for _, method := range methods {
			route := &routers.Route{Spec: s.contract, Path: path, PathItem: item, Method: method, Operation: declared[method]}
			pattern := method + " " + BasePath + path

			if route.Operation == nil {
				s.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
					s.writeError(w, r, &Error{Code: CodeMethod, Detail: "the route allows " + allowed, Allow: allowed})
				})

				continue
			}

			found, isKnown := operations[route.Operation.OperationID]
			if !isKnown {
				problems = append(problems, fmt.Errorf("route %s: add operation %s to listOperations", pattern, route.Operation.OperationID))
			}

			s.routes.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) { s.serveOperation(w, r, route, found) })
		}
	}

	return errors.Join(problems...)
}

// serveOperation checks a request, handles it, and writes the response.
func (s *Server) serveOperation(w http.ResponseWriter, r *http.Request, route *routers.Route, found operation) {
	var out response

	err := s.prepareRequest(r, route, found.roles)
	if err == nil {
		out, err = found.handle(r)
	}

	if err == nil {
		err = out.write(w, r)
	}

	if err != nil {
		s.writeError(w, r, err)
	}
}

// prepareRequest runs after the route of a request is known: it parses the scope, checks the
// caller's roles, and validates the request.
func (s *Server) prepareRequest(r *http.Request, route *routers.Route, roles []string) error {
	name := route.Method + " " + route.Path
	setRoute(r.Context(), name)

	span := trace.SpanFromContext(r.Context())
	span.SetName(name)
	span.SetAttributes(attribute.String("http.route", route.Path))

	target, err := s.parseScope(r)
	info := requestFromContext(r.Context())
	info.scope, info.path = target, metricsPath(route, target)

	if err != nil {
		return err
	}

	if err := authorize(r, route, roles); err != nil {
		return err
	}

	if route.Method == http.MethodPut && strings.HasSuffix(route.Path, "/statuses") {
		r.Body = http.MaxBytesReader(nil, r.Body, maxReportSize)
	}

	return validateRequest(r, route)
}

var pathVariable = regexp.MustCompile(`{[^}]*}`)

// metricsPath returns a route's path for metrics, with the kinds of the scope. Everything else in it that clients choose is
// replaced by "-", because each path has metrics of its own.
func metricsPath(route *routers.Route, target scope) string {
	kinds := map[string]*entity.Kind{"{plural}": cmp.Or(target.parent, target.kind), "{children}": target.kind}

	return BasePath + pathVariable.ReplaceAllStringFunc(route.Path, func(name string) string {
		if kind := kinds[name]; kind != nil {
			return kind.Plural
		}

		return "-"
	})
}
