// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/openapi"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/cel"
	"github.com/hyperfleet/hyperfleet/platform/client"
)

// runPost builds the payloads and runs the actions, and stops at the first failure. It also runs after
// a failure of an earlier phase.
func (r *run) runPost(ctx context.Context) {
	r.vars["adapter"] = r.adapterVariable()

	r.vars["resources"] = r.result.Resources.Objects
	if r.result.Resources.Objects == nil {
		r.vars["resources"] = map[string]any{}
	}

	for i := range r.p.Task.Payloads {
		payload := &r.p.Task.Payloads[i]
		step := Step{Name: payload.Name}
		isBuilt, err := r.buildPayload(ctx, payload, &step)

		r.result.Trace.Payloads = append(r.result.Trace.Payloads, r.recordPostStep("payload", step, isBuilt, err))

		if err != nil {
			return
		}
	}

	for i := range r.p.Task.Actions {
		action := &r.p.Task.Actions[i]
		step := Step{Name: action.Name}
		hasRun, err := r.runAction(ctx, action, &step)

		r.result.Trace.Actions = append(r.result.Trace.Actions, r.recordPostStep("post action", step, hasRun, err))

		if err != nil {
			return
		}
	}
}

// recordPostStep records the result of a step of the post phase and returns the step with its outcome.
func (r *run) recordPostStep(stepType string, step Step, isExecuted bool, err error) Step {
	r.recordStep(PhasePost, stepType, &step, err)

	if err == nil && !isExecuted {
		step.Outcome = StepSkipped
	}

	return step
}

// evaluateWhen evaluates the gate of a step. It returns true if the step has no gate.
func (r *run) evaluateWhen(ctx context.Context, expression *cel.Program, step *Step) (isOpen bool, err error) {
	if expression == nil {
		return true, nil
	}

	isOpen, gate, err := resources.EvaluateGate(ctx, "when", expression, r.vars)
	step.When = &gate

	return isOpen, err
}

// buildPayload builds a payload and sets its variable. It returns false if the gate is false.
func (r *run) buildPayload(ctx context.Context, payload *task.Payload, step *Step) (isBuilt bool, err error) {
	if isOpen, err := r.evaluateWhen(ctx, payload.When, step); !isOpen {
		return false, err
	}

	value, err := payload.Build.Render(ctx, r.vars)
	if err != nil {
		return false, err
	}

	if r.p.IncludeValues {
		step.Value = value
	}

	text, err := json.Marshal(value)
	if err != nil {
		return false, fmt.Errorf("encode payload as JSON: %w", err)
	}

	r.vars[payload.Name] = string(text)

	return true, nil
}

// runAction runs a post action. It returns false if the action is skipped, because its gate is false or
// because a payload that it uses was skipped.
func (r *run) runAction(ctx context.Context, action *task.PostAction, step *Step) (hasRun bool, err error) {
	for _, payload := range r.result.Trace.Payloads {
		if payload.Outcome == StepSkipped && slices.Contains(action.Payloads, payload.Name) {
			step.Reason = "payload " + payload.Name + " was skipped"

			return false, nil
		}
	}

	if isOpen, err := r.evaluateWhen(ctx, action.When, step); !isOpen {
		return false, err
	}

	r.logLine(ctx, action.Name, action.Log)

	if action.APICall == nil {
		return true, nil
	}

	request, response, err := r.callAPI(ctx, action.APICall, step)
	if err != nil {
		return false, err
	}

	r.keepResponse(&request, &client.Response{Status: response.Status})

	// A report that the API has discarded does not count.
	if response.Status != http.StatusNoContent {
		r.accepted = append(r.accepted, request)
	} else if r.isStatusURL(request.URL) {
		r.responses = nil
	}

	return true, nil
}

// isStatusURL reports whether a URL is that of the statuses of the event's resource.
func (r *run) isStatusURL(text string) bool {
	target, err := url.Parse(text)

	return err == nil && strings.HasSuffix(target.Path, "/"+r.event.ResourceID+"/statuses")
}

// reportsUnavailable reports whether a request is a status report of this adapter with Available=False for the event's
// generation.
func (r *run) reportsUnavailable(request client.Call) bool {
	if request.Method != http.MethodPut || !r.isStatusURL(request.URL) {
		return false
	}

	var report openapi.StatusReport
	if json.Unmarshal([]byte(request.Body), &report) != nil ||
		report.Adapter != r.p.Deployment.Adapter.Name || int64(report.ObservedGeneration) != r.event.Generation {
		return false
	}

	return slices.ContainsFunc(report.Conditions, func(c openapi.AdapterCondition) bool {
		return c.Type == conditionAvailable && c.Status == statusFalse
	})
}
