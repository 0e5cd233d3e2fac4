// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/exactjson"
	"github.com/hyperfleet/hyperfleet/platform/adapter/gates"
	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
)

// Text writes the report as text for people. If isVerbose is true, the text also contains the payloads, the calls and
// the final objects on the cluster.
func (r *Report) Text(w io.Writer, isVerbose bool) error {
	t := &writer{}

	t.linef("Event %s (%s): %s %s, generation %d",
		r.Event.ID, r.Event.Type, cmp.Or(r.Event.Kind, "(none)"), cmp.Or(r.Event.ResourceID, "(none)"), r.Event.Generation)

	if r.Assumed {
		t.linef("Adapter: %s (assumed, because --config is not set; objects of other adapters are not managed)", r.Adapter)
	}

	writeSection(t, "Params", r.Params, func(s *pipeline.Step) { t.writeValue("  ", s) })
	writeSection(t, "Preconditions", r.Preconditions, func(s *pipeline.Step) {
		t.writeStep(s.Name, s, map[string]string{pipeline.StepDone: "met"})
	})
	writeSection(t, "Resources", r.Resources, t.writeResource)
	writeSection(t, "Objects not found by any discovery", r.Unmatched, func(object *string) { t.linef("  %s", *object) })
	t.writePost(&r.Trace, isVerbose)

	if isVerbose {
		t.writeCalls(r.Calls)
		t.writeObjects(r.Objects)
	}

	t.writeResult(&r.Trace)

	_, err := io.WriteString(w, t.String())

	return err
}

// writer collects the lines of the text.
type writer struct{ strings.Builder }

func (t *writer) linef(format string, args ...any) {
	t.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " "))
	t.WriteByte('\n')
}

func (t *writer) writeHeading(text string) { t.linef("\n%s", text) }

func (t *writer) writeError(indent, text string) {
	if text != "" {
		t.linef("%serror: %s", indent, text)
	}
}

// writeSection writes a heading and the items below it. It writes nothing if there are no items.
func writeSection[T any](t *writer, title string, all []T, write func(*T)) {
	for i := range all {
		if i == 0 {
			t.writeHeading(title)
		}

		write(&all[i])
	}
}

func (t *writer) writeValue(indent string, s *pipeline.Step) {
	switch s.Outcome {
	case pipeline.StepDone:
		t.linef("%s%-20s = %s  (%s)", indent, s.Name, encodeJSON(s.Value), s.Source)
	case pipeline.StepDefault:
		t.linef("%s%-20s = %s  (default; %s)", indent, s.Name, encodeJSON(s.Value), s.Source)
	default:
		t.linef("%s%-20s %s  (%s)", indent, s.Name, s.Outcome, s.Source)
	}

	t.writeCall(indent+"  ", s.Call)
	t.writeError(indent+"  ", s.Error)
}

// writeStep writes a precondition, a payload or an action. The map outcomes replaces the names of outcomes.
func (t *writer) writeStep(name string, s *pipeline.Step, outcomes map[string]string) {
	t.linef("  %-28s %s", name, strings.TrimSuffix(cmp.Or(outcomes[s.Outcome], s.Outcome)+": "+s.Reason, ": "))
	t.writeGate("    ", s.When)
	t.writeCall("    ", s.Call)

	for i := range s.Captured {
		t.writeValue("    ", &s.Captured[i])
	}

	for _, condition := range s.Conditions {
		t.linef("    %s %s: %v  (is %s)", condition.Field, condition.Operator, condition.Met, encodeJSON(condition.Value))
	}

	t.writeGate("    ", s.Expression)
	t.writeError("    ", s.Error)
}

func (t *writer) writeCall(indent string, call *pipeline.Call) {
	switch {
	case call == nil:
	case call.Status == 0:
		t.linef("%s%s %s -> no response", indent, call.Method, call.URL)
	default:
		t.linef("%s%s %s -> %d", indent, call.Method, call.URL, call.Status)
	}
}

func (t *writer) writeGate(indent string, gate *resources.Gate) {
	if gate == nil {
		return
	}

	inputs := ""
	if len(gate.Inputs) > 0 {
		inputs = "; reads " + strings.Join(gate.Inputs, ", ")
	}

	expression := strings.Join(strings.Fields(gate.Expression), " ")
	t.linef("%s%s: %s  (%s%s)", indent, gate.Gate, gate.Value, expression, inputs)

	if gate.Value == gates.False.String() {
		t.writeError(indent+"  ", gate.Error) // an absent field counts as false
	}
}

func (t *writer) writeResource(entry *resources.Outcome) {
	t.linef("  %-28s %s: %s", entry.Resource, describeOperation(entry), entry.Reason)

	if entry.Object != "" {
		t.linef("    object: %s", entry.Object)
	}

	evaluated := entry.Gates

	for _, step := range entry.Path {
		if len(evaluated) > 0 && evaluated[0].Gate == step.Question {
			t.writeGate("    ", &evaluated[0])
			evaluated = evaluated[1:]

			continue
		}

		t.linef("    %s: %s", step.Question, step.Answer)

		for len(evaluated) > 0 && isPatch(evaluated[0].Gate) && isPatch(step.Question) {
			t.writeGate("      ", &evaluated[0])
			evaluated = evaluated[1:]
		}
	}

	if entry.Message != "" && !strings.Contains(entry.Error, entry.Message) {
		t.linef("    %s", entry.Message)
	}

	if entry.Pending {
		t.linef("    deletion pending: a later event continues")
	}

	if len(entry.Pruned) > 0 {
		t.linef("    pruned: %s", strings.Join(entry.Pruned, ", "))
	}

	t.writeError("    ", entry.Error)
}

// isPatch reports whether a text is the name of a patch's gate or the question about the gates of all patches.
func isPatch(text string) bool { return strings.Contains(text, "lifecycle.patch[") }

func describeOperation(entry *resources.Outcome) string {
	if entry.Operation == resources.None || entry.Operation == "" {
		return string(entry.Outcome)
	}

	if entry.Error != "" {
		return string(entry.Operation) + " failed"
	}

	return string(entry.Operation)
}

func (t *writer) writePost(trace *pipeline.Trace, isVerbose bool) {
	if len(trace.Payloads)+len(trace.Actions) == 0 {
		return
	}

	t.writeHeading("Post")

	for i := range trace.Payloads {
		payload := &trace.Payloads[i]
		t.writeStep("payload "+payload.Name, payload, nil)

		if isVerbose && payload.Value != nil {
			t.writeJSON("    ", payload.Value)
		}
	}

	for i := range trace.Actions {
		t.writeStep("action "+trace.Actions[i].Name, &trace.Actions[i], nil)
	}
}

func (t *writer) writeCalls(calls []Call) {
	t.writeHeading("Calls")

	for _, call := range calls {
		t.linef("  %s %s -> %d", call.Method, call.URL, call.Status)

		if call.Body == "" {
			continue
		}

		if value, err := exactjson.Parse([]byte(call.Body)); err == nil {
			t.writeJSON("    ", value)
		} else {
			t.linef("    %s", call.Body)
		}
	}
}

func (t *writer) writeObjects(objects []map[string]any) {
	t.writeHeading("Final objects on the cluster")

	for _, object := range objects {
		t.writeJSON("  ", object)
	}
}

func (t *writer) writeJSON(indent string, value any) {
	text, err := json.MarshalIndent(value, indent, "  ")
	if err != nil {
		text = []byte(err.Error())
	}

	t.linef("%s%s", indent, text)
}

func (t *writer) writeResult(trace *pipeline.Trace) {
	t.writeHeading("Result: " + string(trace.Result.Status))

	if trace.Result.Phase != "" {
		t.linef("  phase: %s", trace.Result.Phase)
	}

	t.writeError("  ", trace.Result.Error)

	if report := trace.Report; report != nil {
		t.linef("  the framework reports Available=False, %s: %s", report.Reason, report.Outcome)
		t.writeError("  ", report.Error)
	}

	t.linef("  the event is %s", map[string]string{
		pipeline.AckDone: "done", pipeline.AckRedeliver: "delivered again", pipeline.AckPoison: "moved to the dead letters",
	}[trace.Result.Event])
}

func encodeJSON(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}

	return string(text)
}
