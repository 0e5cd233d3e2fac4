// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dryrun

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/hyperfleet/hyperfleet/platform/adapter/pipeline"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
)

// Text writes the report for people. With verbose also what was sent and what is on the
// cluster in the end.
func (r *Report) Text(w io.Writer, verbose bool) error {
	t := &writer{}

	t.linef("Event %s (%s): %s %s, generation %d",
		r.Event.ID, r.Event.Type, cmp.Or(r.Event.Kind, "(none)"), cmp.Or(r.Event.ResourceID, "(none)"), r.Event.Generation)

	if r.Assumed {
		t.linef("Adapter %s: assumed, as there is no --config; objects of another adapter are not its own", r.Adapter)
	}

	section(t, "Params", r.Params, func(s *pipeline.Step) { t.value("  ", s) })
	section(t, "Preconditions", r.Preconditions, func(s *pipeline.Step) {
		t.step(s.Name, s, map[string]string{pipeline.StepDone: "met"})
	})
	section(t, "Resources", r.Resources, t.resource)
	section(t, "Passed over", r.PassedOver, func(object *string) { t.linef("  %s", *object) })
	t.post(&r.Trace, verbose)

	if verbose {
		t.calls(r.Calls)
		t.objects(r.Objects)
	}

	t.result(&r.Trace)

	_, err := io.WriteString(w, t.String())

	return err
}

// JSON writes the report for programs, as one object.
func (r *Report) JSON(w io.Writer) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false) // expressions are full of & and <
	encoder.SetIndent("", "  ")

	return encoder.Encode(r)
}

// writer gathers lines.
type writer struct{ strings.Builder }

func (t *writer) linef(format string, args ...any) {
	t.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " "))
	t.WriteByte('\n')
}

// head begins a part.
func (t *writer) head(text string) { t.linef("\n%s", text) }

func (t *writer) trouble(indent, text string) {
	if text != "" {
		t.linef("%serror: %s", indent, text)
	}
}

// section is a part with a line or more for each of its things; none without any.
func section[T any](t *writer, title string, all []T, write func(*T)) {
	for i := range all {
		if i == 0 {
			t.head(title)
		}

		write(&all[i])
	}
}

// value is one line for a param or a capture.
func (t *writer) value(indent string, s *pipeline.Step) {
	switch s.Outcome {
	case pipeline.StepDone:
		t.linef("%s%-20s = %s  (%s)", indent, s.Name, encode(s.Value), s.Source)
	case pipeline.StepDefault:
		t.linef("%s%-20s = %s  (default; %s)", indent, s.Name, encode(s.Value), s.Source)
	default:
		t.linef("%s%-20s %s  (%s)", indent, s.Name, s.Outcome, s.Source)
	}

	t.call(indent+"  ", s.Call)
	t.trouble(indent+"  ", s.Error)
}

// step is a precondition, a payload or an action; words are for outcomes that are called
// something else here.
func (t *writer) step(name string, s *pipeline.Step, words map[string]string) {
	t.linef("  %-28s %s", name, strings.TrimSuffix(cmp.Or(words[s.Outcome], s.Outcome)+": "+s.Reason, ": "))
	t.gate("    ", s.When)
	t.call("    ", s.Call)

	for i := range s.Captured {
		t.value("    ", &s.Captured[i])
	}

	for _, condition := range s.Conditions {
		t.linef("    %s %s: %v  (is %s)", condition.Field, condition.Operator, condition.Met, encode(condition.Value))
	}

	t.gate("    ", s.Expression)
	t.trouble("    ", s.Error)
}

func (t *writer) call(indent string, call *pipeline.Call) {
	switch {
	case call == nil:
	case call.Status == 0:
		t.linef("%s%s %s -> no answer", indent, call.Method, call.URL)
	default:
		t.linef("%s%s %s -> %d", indent, call.Method, call.URL, call.Status)
	}
}

func (t *writer) gate(indent string, gate *resources.Gate) {
	if gate == nil {
		return
	}

	reads := ""
	if len(gate.Inputs) > 0 {
		reads = "; reads " + strings.Join(gate.Inputs, ", ")
	}

	expression := strings.Join(strings.Fields(gate.Expression), " ")
	t.linef("%s%s: %s  (%s%s)", indent, gate.Gate, gate.Value, expression, reads)
}

func (t *writer) resource(entry *resources.Outcome) {
	t.linef("  %-28s %s: %s", entry.Resource, operation(entry), entry.Reason)

	if entry.Object != "" {
		t.linef("    object: %s", entry.Object)
	}

	gates := entry.Gates

	for _, step := range entry.Path {
		if len(gates) > 0 && gates[0].Gate == step.Question {
			t.gate("    ", &gates[0])
			gates = gates[1:]

			continue
		}

		t.linef("    %s: %s", step.Question, step.Answer)

		for len(gates) > 0 && isPatch(gates[0].Gate) && isPatch(step.Question) {
			t.gate("      ", &gates[0])
			gates = gates[1:]
		}
	}

	if entry.Message != "" && !strings.Contains(entry.Error, entry.Message) {
		t.linef("    %s", entry.Message)
	}

	if entry.Pending {
		t.linef("    deletion pending: a later event goes on")
	}

	if len(entry.Pruned) > 0 {
		t.linef("    pruned: %s", strings.Join(entry.Pruned, ", "))
	}

	t.trouble("    ", entry.Error)
}

// isPatch tells the gates of patches, and the question about all of them.
func isPatch(text string) bool { return strings.Contains(text, "lifecycle.patch[") }

func operation(entry *resources.Outcome) string {
	if entry.Operation == resources.None || entry.Operation == "" {
		return string(entry.Outcome)
	}

	if entry.Error != "" {
		return string(entry.Operation) + " failed"
	}

	return string(entry.Operation)
}

func (t *writer) post(trace *pipeline.Trace, verbose bool) {
	if len(trace.Payloads)+len(trace.Actions) == 0 {
		return
	}

	t.head("Post")

	for i := range trace.Payloads {
		payload := &trace.Payloads[i]
		t.step("payload "+payload.Name, payload, nil)

		if verbose && payload.Value != nil {
			t.block("    ", payload.Value)
		}
	}

	for i := range trace.Actions {
		t.step("action "+trace.Actions[i].Name, &trace.Actions[i], nil)
	}
}

func (t *writer) calls(calls []Call) {
	t.head("Calls")

	for _, call := range calls {
		t.linef("  %s %s -> %d", call.Method, call.URL, call.Status)

		if call.Body == "" {
			continue
		}

		var value any
		if json.Unmarshal([]byte(call.Body), &value) == nil {
			t.block("    ", value)
		} else {
			t.linef("    %s", call.Body)
		}
	}
}

func (t *writer) objects(objects []map[string]any) {
	t.head("Cluster in the end")

	for _, object := range objects {
		t.block("  ", object)
	}
}

// block is JSON over several lines.
func (t *writer) block(indent string, value any) {
	text, err := json.MarshalIndent(value, indent, "  ")
	if err != nil {
		text = []byte(err.Error())
	}

	t.linef("%s%s", indent, text)
}

func (t *writer) result(trace *pipeline.Trace) {
	t.head("Result: " + string(trace.Result.Status))

	if trace.Result.Phase != "" {
		t.linef("  phase: %s", trace.Result.Phase)
	}

	t.trouble("  ", trace.Result.Error)

	if report := trace.Report; report != nil {
		t.linef("  the framework reports Available=False, %s: %s", report.Reason, report.Outcome)
		t.trouble("  ", report.Error)
	}

	t.linef("  the event is %s", map[string]string{
		pipeline.AckDone: "done", pipeline.AckAgain: "delivered again", pipeline.AckPoison: "put to the dead letters",
	}[trace.Result.Event])
}

func encode(value any) string {
	text, err := json.Marshal(value)
	if err != nil {
		return err.Error()
	}

	return string(text)
}
