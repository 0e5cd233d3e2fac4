// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"cmp"
	"errors"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"

	"github.com/hyperfleet/hyperfleet/platform/entity"
)

// validateRequest returns what is wrong with a request according to the OpenAPI document.
func validateRequest(r *http.Request, route *routers.Route) error {
	if err := validateMediaType(r, route.Operation); err != nil {
		return err
	}

	if err := validateQuery(r, route); err != nil {
		return err
	}

	if route.Operation.Parameters.GetByInAndName(openapi3.ParameterInHeader, ifMatchHeader) != nil {
		if err := readIfMatch(r); err != nil {
			return err
		}
	}

	if route.Operation.RequestBody != nil {
		if err := readBody(r); err != nil {
			return err
		}
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

	return newInvalid(convertContractErrors(err)...)
}

// validateMediaType rejects bodies that are not JSON.
func validateMediaType(r *http.Request, operation *openapi3.Operation) error {
	if operation.RequestBody == nil {
		return nil
	}

	mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil || mediaType != "application/json" {
		return newProblem(CodeMediaType, "send the body as application/json")
	}

	return nil
}

// validateQuery rejects parameters that the operation does not have. Otherwise a misspelled "search" would
// list all resources. It also rejects text that no stored value can contain.
func validateQuery(r *http.Request, route *routers.Route) error {
	var problems fieldErrors

	for name, values := range r.URL.Query() {
		switch {
		case route.Operation.Parameters.GetByInAndName(openapi3.ParameterInQuery, name) == nil:
			problems.addf(name, "is not a parameter of this request")
		case len(values) > 1:
			problems.addf(name, "is set more than once")
		case !utf8.ValidString(values[0]) || strings.ContainsRune(values[0], 0):
			problems.addf(name, "has text that is not valid UTF-8, or the character U+0000")
		}
	}

	return problems.err()
}

func convertContractErrors(err error) []entity.FieldError {
	root := ""

	// Only the outermost error has the parameter. It wraps the errors of the parameter's schema.
	switch typed := err.(type) { //nolint:errorlint // the outermost error counts
	case openapi3.MultiError:
		var out []entity.FieldError
		for _, inner := range typed {
			out = append(out, convertContractErrors(inner)...)
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

	out := entity.ConvertSchemaErrors(root, err)
	for i := range out {
		out[i].Field = cmp.Or(out[i].Field, "body")
	}

	return out
}
