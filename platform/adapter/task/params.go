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

// compileParam compiles a param and makes its name available.
func (l *loader) compileParam(i int) {
	in, keyPath := &l.task.Spec.Params[i], strictyaml.Path{"params", i}
	if slices.ContainsFunc(l.task.Spec.Params[i+1:], func(later adapter.Param) bool { return later.Name == in.Name }) {
		return // declareNames has added a warning
	}

	out := Param{Name: in.Name, Type: in.Type, Required: in.Required, Default: in.Default}

	l.checkOneOf(keyPath.Append("type"), in.Type, paramTypes(), mayBeEmpty)

	if in.Required && in.Default != nil {
		l.warnf(keyPath.Append("default"), "remove one of the two",
			"required has no effect, because a param with a default always has a value")
	}

	switch source := in.Source.(type) {
	case nil:
		l.addProblem(keyPath.Append("source"), "a param needs a source")
	case string:
		out.Path = l.compilePath(keyPath.Append("source"), source, orInEvent)
		l.constantParams[in.Name] = out.Path != nil && l.isConstantPath(*out.Path)
	case map[string]any:
		l.compileSource(keyPath.Append("source"), &out)
	default:
		l.addProblem(keyPath.Append("source"), "want a path, or one of api_call, expression and file")
	}

	l.task.Params = append(l.task.Params, out)
	l.available[in.Name] = true
}

// isConstantPath reports whether a path has the same value in all events of a resource.
func (l *loader) isConstantPath(path Path) bool {
	switch path.Variable {
	case varConfig, varEnv, varAdapter:
		return true
	case varEvent:
		last := path.Rest[strings.LastIndex(path.Rest, ".")+1:]

		return slices.Contains([]string{"id", "kind", "href", "name"}, last)
	default:
		return l.constantParams[path.Variable]
	}
}

// compileSource compiles a source that is a mapping, and not the text of a path.
func (l *loader) compileSource(keyPath strictyaml.Path, out *Param) {
	var in adapter.Source

	l.problems = append(l.problems, toProblems(l.doc.DecodeAt(keyPath, &in))...)

	count := 0

	if in.APICall != nil {
		count++
		out.APICall = l.compileAPICall(keyPath.Append("api_call"), in.APICall)
	}

	if l.doc.HasValue(keyPath.Append("expression")) {
		count++

		if out.Expression = l.compileExpression(l.env, keyPath.Append("expression"), in.Expression, asValue); out.Expression != nil {
			l.constantParams[out.Name] = !slices.ContainsFunc(out.Expression.Variables(), func(name string) bool {
				return !l.constantParams[name]
			})
		}
	}

	if in.File != nil {
		count++
		out.File = in.File

		if in.File.Path == "" {
			l.addProblem(keyPath.Append("file"), "a file needs a path")
		}
	}

	if count != 1 {
		l.addProblem(keyPath, "want exactly one of api_call, expression and file")
	}
}

// mayBeEmpty and notEmpty are the values of the parameter acceptEmpty.
const mayBeEmpty, notEmpty = true, false

// checkOneOf adds a problem if a value is not in the list. If acceptEmpty is true, it accepts the empty string.
func (l *loader) checkOneOf(keyPath strictyaml.Path, word string, words []string, acceptEmpty bool) {
	if slices.Contains(words, word) || (word == "" && acceptEmpty) {
		return
	}

	hint := strictyaml.SuggestName(word, words)
	if hint == "" {
		hint = "one of " + strings.Join(words, ", ")
	}

	l.addProblem(keyPath, "unknown %q", word).Hint = hint
}

// parseDuration parses a positive duration, and returns 0 for an empty string.
func (l *loader) parseDuration(keyPath strictyaml.Path, text string) time.Duration {
	if text == "" {
		return 0
	}

	out, err := time.ParseDuration(text)
	if err != nil || out <= 0 {
		l.addProblem(keyPath, "%q is not a duration", text).Hint = "for example 30s, 10m or 48h"
	}

	return out
}

func (l *loader) compileAPICall(keyPath strictyaml.Path, in *adapter.APICall) *APICall {
	out := &APICall{Method: in.Method, Timeout: l.parseDuration(keyPath.Append("timeout"), in.Timeout), Backoff: in.RetryBackoff}

	methods := []string{http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}
	l.checkOneOf(keyPath.Append("method"), in.Method, methods, notEmpty)
	l.checkOneOf(keyPath.Append("retry_backoff"), in.RetryBackoff, []string{"exponential", "linear", "constant"}, mayBeEmpty)

	if in.RetryAttempts != nil {
		if out.Attempts = *in.RetryAttempts; out.Attempts < 1 || out.Attempts > adapter.MaxAttempts {
			l.addProblem(keyPath.Append("retry_attempts"), "want 1 to %d attempts", adapter.MaxAttempts)
		}
	}

	if in.URL == "" {
		l.addProblem(keyPath.Append("url"), "a call needs a url")
	}

	out.URL = &URL{l.compileWithSlots(keyPath.Append("url"), in.URL, &slots{})}

	for i, header := range in.Headers {
		if header.Name == "" || strings.ContainsAny(header.Name, " :\r\n") {
			l.addProblem(keyPath.Append("headers", i, "name"), "%q is not a valid header name", header.Name)
		}

		out.Headers = append(out.Headers, Header{
			Name: header.Name, Value: l.compileTemplate(keyPath.Append("headers", i, "value"), header.Value),
		})
	}

	if in.Body != "" {
		out.Body = l.compileBody(keyPath.Append("body"), in)
	}

	return out
}

func (l *loader) compileLog(keyPath strictyaml.Path, in *adapter.Log) *Log {
	if in == nil {
		return nil
	}

	level, err := log.ParseLevel(in.Level)
	if err != nil {
		l.addProblem(keyPath.Append("level"), "unknown %q", in.Level).Hint = "one of debug, info, warning, error"
	}

	if in.Message == "" {
		l.addProblem(keyPath.Append("message"), "a log needs a message")
	}

	return &Log{Message: l.compileTemplate(keyPath.Append("message"), in.Message), Level: level}
}

// deprecatedCallType is the only type of a precondition in its deprecated form.
const deprecatedCallType = "hyperfleet_api"

func (l *loader) convertDeprecatedCall(keyPath strictyaml.Path, in *adapter.Precondition) {
	switch {
	case in.Type == "" && in.Resource == "" && in.ID == "" && in.OutputParam == "":
	case in.Type != deprecatedCallType:
		l.addProblem(keyPath.Append("type"),
			"want type: %s, or an api_call without type, resource, id and output_param", deprecatedCallType)
	case in.APICall != nil:
		l.addProblem(keyPath.Append("type"), "api_call is set as well").Hint = "type is a deprecated form of api_call: remove it"
	case in.ID == "" || in.OutputParam == "":
		l.addProblem(keyPath, "type: %s needs id and output_param", deprecatedCallType)
	default:
		l.warnf(keyPath.Append("type"),
			fmt.Sprintf("write name: %s, and api_call: {method: GET, url: resources/%s}", in.OutputParam, in.ID),
			"type: %s is a deprecated form of api_call", deprecatedCallType)
		in.Name, in.APICall = in.OutputParam, &adapter.APICall{Method: http.MethodGet, URL: "resources/" + in.ID}
	}
}

// compilePrecondition compiles a precondition and makes its names available.
func (l *loader) compilePrecondition(i int) {
	in, keyPath := &l.task.Spec.Preconditions[i], strictyaml.Path{"preconditions", i}
	out := Precondition{Name: in.Name}

	if in.APICall == nil && len(in.Conditions) == 0 && !l.doc.HasValue(keyPath.Append("expression")) {
		l.addProblem(keyPath, "want at least one of api_call, conditions and expression")
	}

	if in.APICall != nil {
		out.APICall = l.compileAPICall(keyPath.Append("api_call"), in.APICall)
		l.available[in.Name] = true
	} else if len(in.Capture) > 0 {
		l.addProblem(keyPath.Append("capture"), "there is no api_call to capture values from")
	}

	for j := range in.Capture {
		out.Capture = append(out.Capture, l.compileCapture(keyPath.Append("capture", j), &in.Capture[j]))
	}

	for j := range in.Conditions {
		out.Conditions = append(out.Conditions, l.compileCondition(keyPath.Append("conditions", j), &in.Conditions[j]))
	}

	if l.doc.HasValue(keyPath.Append("expression")) {
		out.Expression = l.compileExpression(l.env, keyPath.Append("expression"), in.Expression, asCondition)
	}

	out.Log = l.compileLog(keyPath.Append("log"), in.Log)
	l.task.Preconditions = append(l.task.Preconditions, out)
}

func (l *loader) compileCapture(keyPath strictyaml.Path, in *adapter.Capture) Capture {
	out := Capture{Name: in.Name, Field: in.Field, Default: in.Default}

	hasExpression := l.doc.HasValue(keyPath.Append("expression"))
	if hasExpression == (in.Field != "") {
		l.addProblem(keyPath, "want exactly one of field and expression")
	}

	if hasExpression {
		out.Expression = l.compileExpression(l.captureEnv, keyPath.Append("expression"), in.Expression, asValue)
	}

	l.available[in.Name] = true

	return out
}

// compileCondition compiles a condition, and adds problems for an unknown operator and for values that do
// not fit it. in and notIn also accept their list as value.
func (l *loader) compileCondition(keyPath strictyaml.Path, in *adapter.Condition) Condition {
	out := Condition{Operator: in.Operator, Value: in.Value, Values: in.Values}

	l.checkOneOf(keyPath.Append("operator"), in.Operator, operators(), notEmpty)

	if field := l.compilePath(keyPath.Append("field"), in.Field, fromVariable); field != nil {
		out.Field = *field
	}

	list, isList := in.Value.([]any)
	hasValue, hasValues := l.doc.HasValue(keyPath.Append("value")), l.doc.HasValue(keyPath.Append("values"))

	switch in.Operator {
	case "exists", "notExists":
		if hasValue || hasValues {
			l.addProblem(keyPath, "%s takes no value", in.Operator)
		}
	case "in", "notIn":
		if isList && !hasValues {
			out.Values, out.Value, hasValues = list, nil, true
		}

		if !hasValues {
			l.addProblem(keyPath, "%s needs values, a list", in.Operator)
		}
	default:
		if !hasValue || hasValues {
			l.addProblem(keyPath, "%s needs a value", in.Operator)
		}
	}

	return out
}
