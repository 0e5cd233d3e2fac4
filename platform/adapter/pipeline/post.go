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

	"github.com/hyperfleet/hyperfleet/platform/adapter/httpcall"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
)

// post builds the payloads and runs the actions, whatever came before. It stops at the
// first that fails.
func (r *run) post(ctx context.Context) {
	r.vars["adapter"] = r.adapter()

	r.vars["resources"] = r.result.Resources.Objects
	if r.result.Resources.Objects == nil {
		r.vars["resources"] = map[string]any{}
	}

	skipped, ok := r.payloads(ctx)
	if !ok {
		return
	}

	for i := range r.p.Task.Actions {
		if !r.action(ctx, &r.p.Task.Actions[i], skipped) {
			return
		}
	}
}

// payloads builds them, and gives the names of those whose gate is false.
func (r *run) payloads(ctx context.Context) (skipped []string, ok bool) {
	for i := range r.p.Task.Payloads {
		payload := &r.p.Task.Payloads[i]
		trace := PayloadTrace{Name: payload.Name, Outcome: StepDone}

		holds, text, err := r.payload(ctx, payload, &trace)

		switch {
		case err != nil:
			trace.Outcome, trace.Error = StepFailed, err.Error()
			r.fail(PhasePost, payload.Name, fmt.Errorf("payload %s: %w", payload.Name, err))
		case !holds:
			trace.Outcome = StepSkipped
			skipped = append(skipped, payload.Name)
		default:
			r.vars[payload.Name] = text
		}

		r.result.Trace.Payloads = append(r.result.Trace.Payloads, trace)

		if err != nil {
			return skipped, false
		}
	}

	return skipped, true
}

func (r *run) payload(ctx context.Context, payload *task.Payload, trace *PayloadTrace) (bool, string, error) {
	if payload.When != nil {
		holds, gate, err := resources.Ask(ctx, "when", payload.When, r.vars)
		trace.Gate = &gate

		if err != nil || !holds {
			return false, "", err
		}
	}

	value, err := payload.Build.Render(ctx, r.vars)
	if err != nil {
		return false, "", err
	}

	if r.p.Values {
		trace.Value = value
	}

	text, err := json.Marshal(value)
	if err != nil {
		return false, "", fmt.Errorf("it is no JSON: %w", err)
	}

	return true, string(text), nil
}

// action runs one; false if the phase ends with it.
func (r *run) action(ctx context.Context, action *task.PostAction, skipped []string) bool {
	trace := ActionTrace{Name: action.Name, Outcome: StepDone}

	done, err := r.act(ctx, action, skipped, &trace)
	if !done && err == nil {
		trace.Outcome = StepSkipped
	}

	if err != nil {
		trace.Outcome, trace.Error = StepFailed, err.Error()

		if !r.gone {
			r.fail(PhasePost, action.Name, fmt.Errorf("post action %s: %w", action.Name, err))
		}
	}

	r.result.Trace.Actions = append(r.result.Trace.Actions, trace)

	return err == nil
}

// act says whether the action was run.
func (r *run) act(ctx context.Context, action *task.PostAction, skipped []string, trace *ActionTrace) (bool, error) {
	for _, payload := range action.Payloads {
		if slices.Contains(skipped, payload) {
			trace.Reason = "payload " + payload + " was skipped"

			return false, nil
		}
	}

	if action.When != nil {
		holds, gate, err := resources.Ask(ctx, "when", action.When, r.vars)
		trace.Gate = &gate

		if err != nil || !holds {
			return false, err
		}
	}

	r.say(ctx, action.Name, action.Log)

	if action.APICall == nil {
		return true, nil
	}

	request, response, call, err := r.call(ctx, action.APICall)
	trace.Call = call

	if err != nil {
		return true, err
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
	if err != nil || !strings.HasSuffix(target.Path, "/"+r.about.id+"/statuses") {
		return false
	}

	var report struct {
		Adapter    string `json:"adapter"`
		Generation int64  `json:"observed_generation"`
		Conditions []struct {
			Type   string `json:"type"`
			Status string `json:"status"`
		} `json:"conditions"`
	}

	if json.Unmarshal([]byte(request.Body), &report) != nil ||
		report.Adapter != r.p.Deployment.Adapter.Name || report.Generation != r.about.generation {
		return false
	}

	for _, condition := range report.Conditions {
		if condition.Type == conditionAvailable {
			return condition.Status == statusFalse
		}
	}

	return false
}
