// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// routeOf finds the operation of a pattern of the mux, for example GET BASE/{plural}/{id}, in
// the contract.
func (s *Server) routeOf(pattern string) (*routers.Route, error) {
	method, path, _ := strings.Cut(pattern, " ")
	path = strings.TrimPrefix(path, BasePath)

	item := s.contract.Paths.Find(path)
	if item == nil || item.GetOperation(method) == nil {
		return nil, fmt.Errorf("route %s: not in the contract", pattern)
	}

	return &routers.Route{Spec: s.contract, Path: path, PathItem: item, Method: method, Operation: item.GetOperation(method)}, nil
}

// fits says what is wrong with a request by the contract.
func fits(r *http.Request, route *routers.Route) error {
	if err := media(r, route.Operation); err != nil {
		return err
	}

	if err := knownQuery(r, route); err != nil {
		return err
	}

	params := map[string]string{}

	for _, name := range []string{"plural", "id", "children", "childID", "name"} {
		if value := r.PathValue(name); value != "" {
			params[name] = value
		}
	}

	err := openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: route,
		Options: &openapi3filter.Options{
			MultiError: true, SkipSettingDefaults: true, AuthenticationFunc: openapi3filter.NoopAuthenticationFunc,
		},
	})
	if err == nil {
		return nil
	}

	var large *http.MaxBytesError
	if errors.As(err, &large) {
		return problem(CodeTooLarge, "the body has more than %d bytes", large.Limit)
	}

	return invalid(contractErrors(err)...)
}

// media refuses bodies that are not JSON.
func media(r *http.Request, operation *openapi3.Operation) error {
	if operation.RequestBody == nil {
		return nil
	}

	got, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || got != "application/json" {
		return problem(CodeMedia, "send application/json")
	}

	return nil
}

// knownQuery refuses parameters that the operation does not have: a misspelt search would
// list everything.
func knownQuery(r *http.Request, route *routers.Route) error {
	var wrong faults

	for name, values := range r.URL.Query() {
		if route.Operation.Parameters.GetByInAndName(openapi3.ParameterInQuery, name) == nil {
			wrong.sayf(name, "is not a parameter of this request")
		} else if len(values) > 1 {
			wrong.sayf(name, "is there more than once")
		}
	}

	return wrong.err()
}

// contractErrors says by field what does not fit the contract.
func contractErrors(err error) []entity.FieldError {
	root := ""

	// The outermost error counts: one of a parameter holds those of its schema.
	switch typed := err.(type) { //nolint:errorlint // as above
	case openapi3.MultiError:
		var out []entity.FieldError
		for _, one := range typed {
			out = append(out, contractErrors(one)...)
		}

		return out
	case *openapi3filter.RequestError:
		if typed.Parameter != nil {
			root = typed.Parameter.Name
		}

		if err = typed.Err; err == nil {
			err = errors.New(typed.Reason)
		}
	}

	out := entity.SchemaErrors(root, err)
	for i := range out {
		out[i].Field = cmp.Or(out[i].Field, "body")
	}

	return out
}
