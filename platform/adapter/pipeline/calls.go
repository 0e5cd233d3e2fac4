// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/platform/adapter/httpcall"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

// fetch makes a call of a param or a precondition, and gives its answer: JSON, or nil for
// an answer without a body. A 404 is a value that is not there.
func (r *run) fetch(ctx context.Context, call *task.APICall, step *Step) (any, error) {
	_, response, err := r.call(ctx, call, step)
	if err != nil {
		if status, ok := errors.AsType[*httpcall.StatusError](err); ok && status.Status == http.StatusNotFound && status.Code != "" {
			err = fmt.Errorf("%w: %w", errAbsent, err)
		}

		return nil, err
	}

	if len(response.Body) == 0 {
		return nil, nil //nolint:nilnil // no value is one
	}

	answer, err := decode(response.Body)
	if err != nil {
		return nil, fmt.Errorf("%s %s: read the answer: %w", call.Method, call.URL, err)
	}

	r.learn(answer)

	return answer, nil
}

// learn takes out of an answer what it says of the event's own resource.
func (r *run) learn(answer any) {
	resource, ok := answer.(map[string]any)
	if !ok || resource["id"] != r.about.ResourceID {
		return
	}

	generation, _ := resource["generation"].(int64)
	r.know(generation, resource["deleted_time"] != nil)
}

func (r *run) know(generation int64, deleting bool) {
	r.answered, r.deleting = true, deleting
	r.current = max(r.current, generation)
}

// call renders and makes one call, and gives what was sent and what came back.
func (r *run) call(ctx context.Context, call *task.APICall, step *Step) (httpcall.Request, *httpcall.Response, error) {
	step.Call = &Call{Method: call.Method}

	request, err := render(call, r.vars)
	if err != nil {
		return request, nil, err
	}

	step.Call.URL = call.URL.String()
	if r.p.Values {
		step.Call.URL = request.URL
	}

	response, err := r.p.http.Do(ctx, request)
	if err == nil {
		step.Call.Status = response.Status

		return request, response, nil
	}

	if status, ok := errors.AsType[*httpcall.StatusError](err); ok {
		step.Call.Status = status.Status

		if status.Gone {
			// It may be another resource that the call was about.
			err = errors.Join(err, r.ask(ctx))
		}
	}

	return request, nil, err
}

// ask has the API say what is true of the event's own resource now.
func (r *run) ask(ctx context.Context) error {
	resource, err := r.p.api.Get(ctx, r.about.ResourceID)

	switch {
	case errors.Is(err, client.ErrNotFound):
		r.gone = true
	case err != nil:
		return fmt.Errorf("ask whether the resource is being deleted: %w", err)
	default:
		r.know(int64(resource.Generation), resource.DeletedTime != nil)
	}

	return nil
}

func render(call *task.APICall, vars map[string]any) (httpcall.Request, error) {
	request := httpcall.Request{
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
			return request, fmt.Errorf("api_call.headers %s: its value has more than one line", header.Name)
		}

		request.Header.Add(header.Name, value)
	}

	if call.Body != nil {
		if request.Body, err = call.Body.Render(vars); err != nil {
			return request, fmt.Errorf("api_call.body: %w", err)
		}
	}

	return request, nil
}

// mayPass says whether trying the event again may help: the network, an outage, a limit,
// a conflict, or the event's own time. What the task file does wrong, and what the cluster
// refuses, stays until a person fixes it.
func mayPass(err error) bool {
	var (
		status  *httpcall.StatusError
		classed *errclass.Error
		answer  *client.Error
	)

	switch {
	case err == nil:
		return false
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return true
	case errors.As(err, &status):
		return httpcall.Transient(err) || misleading(status)
	case errors.As(err, &classed):
		return classed.Class() == errclass.Transient || classed.Class() == errclass.Resource
	case errors.As(err, &answer):
		return answer.Temporary()
	default:
		return httpcall.Transient(err)
	}
}

// misleading are answers that are about something else than the request: who asks, a
// conflict with another writer, or a 404 of something that is not the fleet API.
func misleading(status *httpcall.StatusError) bool {
	switch status.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict:
		return true
	case http.StatusNotFound:
		return status.Code == ""
	default:
		return false
	}
}
