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
	"github.com/hyperfleet/hyperfleet/platform/adapter/httpcall"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// post builds the payloads and runs the actions, whatever came before. It stops at the
// first that fails.
func (r *run) post(ctx context.Context) {
	r.vars["adapter"] = r.adapter()

	r.vars["resources"] = r.result.Resources.Objects
	if r.result.Resources.Objects == nil {
		r.vars["resources"] = map[string]any{}
	}

	for i := range r.p.Task.Payloads {
		payload := &r.p.Task.Payloads[i]
		step := Step{Name: payload.Name}
		done, err := r.payload(ctx, payload, &step)

		r.result.Trace.Payloads = append(r.result.Trace.Payloads, r.posted("payload", step, done, err))

		if err != nil {
			return
		}
	}

	for i := range r.p.Task.Actions {
		action := &r.p.Task.Actions[i]
		step := Step{Name: action.Name}
		done, err := r.act(ctx, action, &step)

		r.result.Trace.Actions = append(r.result.Trace.Actions, r.posted("post action", step, done, err))

		if err != nil {
			return
		}
	}
}

// posted is how a step of the phase has ended.
func (r *run) posted(what string, step Step, done bool, err error) Step {
	r.ended(PhasePost, what, &step, err)

	if err == nil && !done {
		step.Outcome = StepSkipped
	}

	return step
}

// when asks the gate of a step; one that it does not have holds.
func (r *run) when(ctx context.Context, expression *cel.Program, step *Step) (bool, error) {
	if expression == nil {
		return true, nil
	}

	holds, gate, err := resources.Ask(ctx, "when", expression, r.vars)
	step.When = &gate

	return holds, err
}

// payload says whether the payload was built.
func (r *run) payload(ctx context.Context, payload *task.Payload, step *Step) (bool, error) {
	if holds, err := r.when(ctx, payload.When, step); !holds {
		return false, err
	}

	value, err := payload.Build.Render(ctx, r.vars)
	if err != nil {
		return false, err
	}

	if r.p.Values {
		step.Value = value
	}

	text, err := json.Marshal(value)
	if err != nil {
		return false, fmt.Errorf("it is no JSON: %w", err)
	}

	r.vars[payload.Name] = string(text)

	return true, nil
}

// act says whether the action was run.
func (r *run) act(ctx context.Context, action *task.PostAction, step *Step) (bool, error) {
	for _, payload := range r.result.Trace.Payloads {
		if payload.Outcome == StepSkipped && slices.Contains(action.Payloads, payload.Name) {
			step.Reason = "payload " + payload.Name + " was skipped"

			return false, nil
		}
	}

	if holds, err := r.when(ctx, action.When, step); !holds {
		return false, err
	}

	r.say(ctx, action.Name, action.Log)

	if action.APICall == nil {
		return true, nil
	}

	request, response, err := r.call(ctx, action.APICall, step)
	if err != nil {
		return false, err
	}

	r.reported = r.reported || r.isReport(&request, response)

	return true, nil
}

// isReport says whether a call that the API took was a report of this adapter for the
// event's generation that says Available=False. A report that the API has discarded (204)
// does not count.
func (r *run) isReport(request *httpcall.Request, response *httpcall.Response) bool {
	if request.Method != http.MethodPut || response.Status == http.StatusNoContent {
		return false
	}

	target, err := url.Parse(request.URL)
	if err != nil || !strings.HasSuffix(target.Path, "/"+r.about.ResourceID+"/statuses") {
		return false
	}

	var report openapi.StatusReport
	if json.Unmarshal([]byte(request.Body), &report) != nil ||
		report.Adapter != r.p.Deployment.Adapter.Name || int64(report.ObservedGeneration) != r.about.Generation {
		return false
	}

	return slices.ContainsFunc(report.Conditions, func(c openapi.AdapterCondition) bool {
		return c.Type == conditionAvailable && c.Status == statusFalse
	})
}
