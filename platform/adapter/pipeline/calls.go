// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

// fetch sends the call of a param or a precondition and returns the decoded JSON of the response, or
// nil for a response without a body. If the fleet API responds with a problem of status 404, the error
// wraps errAbsent.
func (r *run) fetch(ctx context.Context, call *task.APICall, step *Step) (any, error) {
	request, response, err := r.callAPI(ctx, call, step)
	if err != nil {
		if status, ok := errors.AsType[*client.Error](err); ok && status.Status == http.StatusNotFound && status.Code != "" {
			err = fmt.Errorf("%w: %w", errAbsent, err)
		}

		return nil, err
	}

	if len(response.Body) == 0 {
		r.responses = nil

		return nil, nil //nolint:nilnil // null is a value
	}

	value, err := exactjson.Parse(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: decode response: %w", call.Method, call.URL, err)
	}

	if r.recordResponse(value) && request.Method == http.MethodGet {
		r.keepResponse(&request, response)
	} else {
		r.responses = nil
	}

	return value, nil
}

// recordResponse records the state of the event's resource, and returns true, if a response contains the resource.
func (r *run) recordResponse(value any) bool {
	resource, ok := value.(map[string]any)
	if !ok || resource["id"] != r.event.ResourceID {
		return false
	}

	generation, _ := resource["generation"].(int64)
	r.recordResource(generation, resource["deleted_time"] != nil)

	return true
}

func (r *run) recordResource(generation int64, isDeleting bool) {
	r.hasResource, r.isResourceDeleting, r.currentGeneration = true, isDeleting, generation
}

// callAPI renders and sends one call, and returns the request and the response.
func (r *run) callAPI(ctx context.Context, call *task.APICall, step *Step) (client.Call, *client.Response, error) {
	step.Call = &Call{Method: call.Method}

	request, err := renderRequest(call, r.vars)
	if err != nil {
		return request, nil, err
	}

	if err := r.addFinalizedCondition(&request); err != nil {
		return request, nil, err
	}

	step.Call.URL = call.URL.String() // the template, because its values may be secret
	if r.p.IncludeValues {
		step.Call.URL = request.URL
	}

	response, err := r.send(ctx, &request)
	if err == nil {
		step.Call.Status = response.Status

		return request, response, nil
	}

	if status, ok := errors.AsType[*client.Error](err); ok {
		step.Call.Status = status.Status

		if errors.Is(status, client.ErrNotFound) {
			// Find out whether the event's resource is gone, or only another resource that the call names. If this fails, its
			// error is the first one, by which isRetryable decides.
			err = errors.Join(r.readResource(ctx), err)
		}
	}

	return request, nil, err
}

// readResource reads the event's resource from the API and records its state.
func (r *run) readResource(ctx context.Context) error {
	if r.earlier != nil {
		return r.requireCall()
	}

	resource, err := r.p.api.Get(ctx, r.event.ResourceID)

	switch {
	case errors.Is(err, client.ErrNotFound):
		r.isResourceMissing = true
	case err != nil:
		return fmt.Errorf("read resource from the API: %w", err)
	default:
		r.recordResource(int64(resource.Generation), resource.DeletedTime != nil)
	}

	return nil
}

// readGeneration reads the generation of the event's resource from the API again. It returns 0 if the resource does not
// exist.
func (r *run) readGeneration(ctx context.Context) (int64, error) {
	if err := r.readResource(ctx); err != nil || r.isResourceMissing {
		return 0, err
	}

	return r.currentGeneration, nil
}

// renderRequest renders the templates of a call. It rejects a header value with more than one line.
func renderRequest(call *task.APICall, vars map[string]any) (client.Call, error) {
	request := client.Call{
		Method: call.Method, Timeout: call.Timeout, Attempts: call.Attempts, Backoff: call.Backoff, Header: http.Header{},
	}

	var err error
	if request.URL, err = call.URL.Render(vars); err != nil {
		return request, fmt.Errorf("api_call.url: %w", err)
	}

	for _, header := range call.Headers {
		value, err := header.Value.Render(vars)
		if err != nil {
			return request, fmt.Errorf("api_call.headers %s: %w", header.Name, err)
		}

		if strings.ContainsAny(value, "\r\n") {
			return request, fmt.Errorf("api_call.headers %s: the value has more than one line", header.Name)
		}

		request.Header.Add(header.Name, value)
	}

	if call.Body != nil {
		if request.Body, err = call.Body.Render(vars, request.Header.Get("Content-Type")); err != nil {
			return request, fmt.Errorf("api_call.body: %w", err)
		}
	}

	return request, nil
}

// isRetryable reports whether handling the event again may succeed: after errors of the network,
// outages, rate limits, conflicts and timeouts. Errors of the task file and requests that the cluster
// rejects are not retryable, because a person has to fix them.
func isRetryable(err error) bool {
	var classErr *errclass.Error

	switch {
	case err == nil:
		return false
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return true
	case errors.As(err, &classErr):
		return classErr.Class() == errclass.Transient || classErr.Class() == errclass.Resource
	default:
		return client.IsTransient(err)
	}
}
