// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sort"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

//go:embed openapi/*.json
var descriptions embed.FS

// Spec is GitHub's OpenAPI description for the validation of requests, responses and webhooks. It
// is read-only and servers can share it.
type Spec struct {
	operations []*operation
	webhooks   map[string]*openapi3.SchemaRef // by action
	basicError *openapi3.SchemaRef
}

// operation is one method of one path.
type operation struct {
	id     string
	method string
	path   string
	route  *routers.Route
}

// LoadSpec loads the embedded extracts.
func LoadSpec() (*Spec, error) {
	spec := &Spec{webhooks: map[string]*openapi3.SchemaRef{}}
	for _, name := range []string{"openapi/api.github.com.json", "openapi/ghec.json"} {
		raw, err := descriptions.ReadFile(name)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", name, err)
		}
		doc, err := openapi3.NewLoader().LoadFromData(raw)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", name, err)
		}
		spec.add(doc)
	}
	if spec.basicError == nil || len(spec.webhooks) != 4 {
		return nil, errors.New("read the OpenAPI extracts: an error or webhook schema is missing")
	}
	sort.Slice(spec.operations, func(i, j int) bool { return spec.operations[i].id < spec.operations[j].id })
	return spec, nil
}

func (s *Spec) add(doc *openapi3.T) {
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			s.operations = append(s.operations, &operation{
				id: op.OperationID, method: method, path: path,
				route: &routers.Route{Spec: doc, Path: path, PathItem: item, Method: method, Operation: op},
			})
		}
	}
	for action, name := range map[string]string{
		"queued": "queued", "waiting": "waiting", "in_progress": "in-progress", "completed": "completed",
	} {
		if schema, ok := doc.Components.Schemas["webhook-workflow-job-"+name]; ok {
			s.webhooks[action] = schema
		}
	}
	if s.basicError == nil {
		s.basicError = doc.Components.Schemas["basic-error"]
	}
}

func newFilterOptions() *openapi3filter.Options {
	return &openapi3filter.Options{
		MultiError:            true,
		IncludeResponseStatus: true,
		SkipSettingDefaults:   true,
		AuthenticationFunc:    openapi3filter.NoopAuthenticationFunc,
	}
}

// newInput returns the input for the validation of a request. params are the escaped path
// parameters of the mux.
func (op *operation) newInput(r *http.Request, params map[string]string) *openapi3filter.RequestValidationInput {
	return &openapi3filter.RequestValidationInput{
		Request: r, PathParams: params, Route: op.route, Options: newFilterOptions(),
	}
}

// checkRequest validates a request against the description. It is stricter than GitHub: an
// undocumented query parameter is a violation too, because it is usually a typo.
func (op *operation) checkRequest(ctx context.Context, input *openapi3filter.RequestValidationInput) error {
	if err := openapi3filter.ValidateRequest(ctx, input); err != nil {
		return fmt.Errorf("request does not match the description: %w", err)
	}
	for name := range input.Request.URL.Query() {
		if !op.hasQuery(name) {
			return fmt.Errorf("query parameter %q is not described for %s", name, op.id)
		}
	}
	return nil
}

func (op *operation) hasQuery(name string) bool {
	for _, params := range []openapi3.Parameters{op.route.Operation.Parameters, op.route.PathItem.Parameters} {
		if params.GetByInAndName(openapi3.ParameterInQuery, name) != nil {
			return true
		}
	}
	return false
}

// checkResponse validates a response against the description. GitHub omits common errors (401, 403,
// 404, 429, 5xx) from most operations. Such a response must have the schema of basic errors.
func (s *Spec) checkResponse(
	ctx context.Context, input *openapi3filter.RequestValidationInput, status int, header http.Header, body []byte,
) error {
	op := input.Route.Operation
	if status == http.StatusNotModified && len(body) == 0 {
		return nil // the response to If-None-Match, which the description omits
	}
	if op.Responses.Status(status) != nil {
		out := &openapi3filter.ResponseValidationInput{
			RequestValidationInput: input, Status: status, Header: header, Options: newFilterOptions(),
		}
		out.SetBodyBytes(body)
		if err := openapi3filter.ValidateResponse(ctx, out); err != nil {
			return fmt.Errorf("response %d does not match the description: %w", status, err)
		}
		return nil
	}
	if status != 400 && status != 401 && status != 403 && status != 404 && status != 429 && status < 500 {
		return fmt.Errorf("response %d is not described for %s", status, op.OperationID)
	}
	return checkJSON(s.basicError, body)
}

// checkWebhook validates a workflow_job payload against the schema of its action.
func (s *Spec) checkWebhook(action string, body []byte) error {
	schema, ok := s.webhooks[action]
	if !ok {
		return fmt.Errorf("webhook action %q is not described", action)
	}
	return checkJSON(schema, body)
}

func checkJSON(schema *openapi3.SchemaRef, body []byte) error {
	value, err := decodeJSON(body)
	if err != nil {
		return fmt.Errorf("parse body: %w", err)
	}
	if err := schema.Value.VisitJSON(value, openapi3.MultiErrors()); err != nil {
		return fmt.Errorf("body does not match the schema: %w", err)
	}
	return nil
}

// parsePathNames returns the parameter names of a path template, in order.
func parsePathNames(path string) []string {
	var names []string
	for part := range strings.SplitSeq(path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			names = append(names, strings.TrimSuffix(name, "}"))
		}
	}
	return names
}

func escapeParams(names []string, value func(string) string) map[string]string {
	params := make(map[string]string, len(names))
	for _, name := range names {
		params[name] = url.PathEscape(value(name))
	}
	return params
}
