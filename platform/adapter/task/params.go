// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// param compiles one and makes its name known.
func (l *loader) param(i int) {
	in, at := &l.task.Spec.Params[i], strictyaml.Path{"params", i}
	if slices.ContainsFunc(l.task.Spec.Params[i+1:], func(later adapter.Param) bool { return later.Name == in.Name }) {
		return // collect has said so
	}

	out := Param{Name: in.Name, Type: in.Type, Required: in.Required, Default: in.Default}

	l.oneOf(at.With("type"), in.Type, paramTypes(), true)

	if in.Required && in.Default != nil {
		l.warnf(at.With("default"), "take out one of the two", "a param with a default always has a value: required has no meaning")
	}

	switch source := in.Source.(type) {
	case nil:
		l.problem(at.With("source"), "a param needs a source")
	case string:
		out.Path = l.path(at.With("source"), source, true)
		l.fixed[in.Name] = out.Path != nil && l.fixedPath(*out.Path)
	case map[string]any:
		l.source(at.With("source"), &out)
	default:
		l.problem(at.With("source"), "want a path, or one of api_call, expression and file")
	}

	l.task.Params = append(l.task.Params, out)
	l.known[in.Name] = true
}

// fixedPath says whether a path has the same value in all events of a resource.
func (l *loader) fixedPath(path Path) bool {
	switch path.Variable {
	case varConfig, varEnv, varAdapter:
		return true
	case varEvent:
		last := path.Rest[strings.LastIndex(path.Rest, ".")+1:]

		return slices.Contains([]string{"id", "kind", "href", "name"}, last)
	default:
		return l.fixed[path.Variable]
	}
}

// source compiles a source that is not a path.
func (l *loader) source(at strictyaml.Path, out *Param) {
	var in adapter.Source

	l.problems = append(l.problems, problemsOf(l.doc.DecodeAt(at, &in))...)

	count := 0

	if in.APICall != nil {
		count++
		out.APICall = l.apiCall(at.With("api_call"), in.APICall)
	}

	if l.doc.Has(at.With("expression")) {
		count++

		if out.Expression = l.expression(l.env, at.With("expression"), in.Expression, false); out.Expression != nil {
			l.fixed[out.Name] = !slices.ContainsFunc(out.Expression.Variables(), func(name string) bool { return !l.fixed[name] })
		}
	}

	if in.File != nil {
		count++
		out.File = in.File

		if in.File.Path == "" {
			l.problem(at.With("file"), "a file needs a path")
		}
	}

	if count != 1 {
		l.problem(at, "want exactly one of api_call, expression and file")
	}
}

// oneOf checks a word against those there are; empty says whether it may be left out.
func (l *loader) oneOf(at strictyaml.Path, word string, words []string, empty bool) {
	if slices.Contains(words, word) || (word == "" && empty) {
		return
	}

	hint := strictyaml.Nearest(word, words)
	if hint == "" {
		hint = "one of " + strings.Join(words, ", ")
	}

	l.problem(at, "unknown %q", word).Hint = hint
}

// duration reads one that is longer than 0; 0 for the empty text.
func (l *loader) duration(at strictyaml.Path, text string) time.Duration {
	if text == "" {
		return 0
	}

	out, err := time.ParseDuration(text)
	if err != nil || out <= 0 {
		l.problem(at, "%q is not a duration", text).Hint = "write 30s, 10m or 48h"
	}

	return out
}

func (l *loader) apiCall(at strictyaml.Path, in *adapter.APICall) *APICall {
	out := &APICall{Method: in.Method, Timeout: l.duration(at.With("timeout"), in.Timeout), Backoff: in.RetryBackoff}

	methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	l.oneOf(at.With("method"), in.Method, methods, false)
	l.oneOf(at.With("retry_backoff"), in.RetryBackoff, []string{"exponential", "linear", "constant"}, true)

	if in.RetryAttempts != nil {
		if out.Attempts = *in.RetryAttempts; out.Attempts < 1 || out.Attempts > adapter.MaxAttempts {
			l.problem(at.With("retry_attempts"), "want 1 to %d tries", adapter.MaxAttempts)
		}
	}

	if in.URL == "" {
		l.problem(at.With("url"), "a call needs a url")
	}

	out.URL = l.template(at.With("url"), in.URL)
	out.Body = l.optionalTemplate(at.With("body"), in.Body)

	for i, header := range in.Headers {
		if header.Name == "" || strings.ContainsAny(header.Name, " :\r\n") {
			l.problem(at.With("headers", i, "name"), "%q is not a header's name", header.Name)
		}

		out.Headers = append(out.Headers, Header{Name: header.Name, Value: l.template(at.With("headers", i, "value"), header.Value)})
	}

	return out
}

func (l *loader) log(at strictyaml.Path, in *adapter.Log) *Log {
	if in == nil {
		return nil
	}

	level, err := log.ParseLevel(in.Level)
	if err != nil {
		l.problem(at.With("level"), "unknown %q", in.Level).Hint = "one of debug, info, warning, error"
	}

	if in.Message == "" {
		l.problem(at.With("message"), "a line needs a message")
	}

	return &Log{Message: l.template(at.With("message"), in.Message), Level: level}
}

// oldCall is the type of preconditions in their old form.
const oldCall = "hyperfleet_api"

// oldForm is the call of a precondition in its old form.
func (l *loader) oldForm(at strictyaml.Path, in *adapter.Precondition) {
	switch {
	case in.Type == "" && in.Resource == "" && in.ID == "" && in.OutputParam == "":
	case in.Type != oldCall:
		l.problem(at.With("type"), "want type: %s, or an api_call without type, resource, id and output_param", oldCall)
	case in.APICall != nil:
		l.problem(at.With("type"), "there is api_call as well").Hint = "type is an old form of it: take the old one out"
	case in.ID == "" || in.OutputParam == "":
		l.problem(at, "type: %s needs id and output_param", oldCall)
	default:
		l.warnf(at.With("type"), fmt.Sprintf("write name: %s, and api_call: {method: GET, url: resources/%s}", in.OutputParam, in.ID),
			"type: %s is an old form of api_call", oldCall)
		in.Name, in.APICall = in.OutputParam, &adapter.APICall{Method: http.MethodGet, URL: "resources/" + in.ID}
	}
}

// precondition compiles one and makes its names known.
func (l *loader) precondition(i int) {
	in, at := &l.task.Spec.Preconditions[i], strictyaml.Path{"preconditions", i}
	out := Precondition{Name: in.Name}

	if in.APICall == nil && len(in.Conditions) == 0 && !l.doc.Has(at.With("expression")) {
		l.problem(at, "want at least one of api_call, conditions and expression")
	}

	if in.APICall != nil {
		out.APICall = l.apiCall(at.With("api_call"), in.APICall)
		l.known[in.Name] = true
	} else if len(in.Capture) > 0 {
		l.problem(at.With("capture"), "there is no api_call to take values from")
	}

	for j := range in.Capture {
		out.Capture = append(out.Capture, l.captured(at.With("capture", j), &in.Capture[j]))
	}

	for j := range in.Conditions {
		out.Conditions = append(out.Conditions, l.condition(at.With("conditions", j), &in.Conditions[j]))
	}

	if l.doc.Has(at.With("expression")) {
		out.Expression = l.expression(l.env, at.With("expression"), in.Expression, true)
	}

	out.Log = l.log(at.With("log"), in.Log)
	l.task.Preconditions = append(l.task.Preconditions, out)
}

func (l *loader) captured(at strictyaml.Path, in *adapter.Capture) Capture {
	out := Capture{Name: in.Name, Field: in.Field, Default: in.Default}

	hasExpression := l.doc.Has(at.With("expression"))
	if hasExpression == (in.Field != "") {
		l.problem(at, "want exactly one of field and expression")
	}

	if hasExpression {
		out.Expression = l.expression(l.capture, at.With("expression"), in.Expression, false)
	}

	l.known[in.Name] = true

	return out
}

func (l *loader) condition(at strictyaml.Path, in *adapter.Condition) Condition {
	out := Condition{Operator: in.Operator, Value: in.Value, Values: in.Values}

	l.oneOf(at.With("operator"), in.Operator, operators(), false)

	if field := l.path(at.With("field"), in.Field, false); field != nil {
		out.Field = *field
	}

	list, isList := in.Value.([]any)
	hasValue, hasValues := l.doc.Has(at.With("value")), l.doc.Has(at.With("values"))

	switch in.Operator {
	case "exists", "notExists":
		if hasValue || hasValues {
			l.problem(at, "%s takes no value", in.Operator)
		}
	case "in", "notIn":
		if isList && !hasValues {
			out.Values, out.Value, hasValues = list, nil, true
		}

		if !hasValues {
			l.problem(at, "%s wants values, a list", in.Operator)
		}
	default:
		if !hasValue || hasValues {
			l.problem(at, "%s wants a value", in.Operator)
		}
	}

	return out
}
