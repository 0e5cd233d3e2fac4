// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
)

// maxParamFileSize is the maximum size of a param's file, in bytes.
const maxParamFileSize = 1 << 20

// errAbsent is the error of a value that is absent.
var errAbsent = errors.New("the value is absent")

// evaluateParams evaluates the params in their order. If a required param has no value, the phase
// fails. An optional param without a value gets its default, or null.
func (r *run) evaluateParams(ctx context.Context) {
	for i := range r.p.Task.Params {
		param := &r.p.Task.Params[i]
		step := Step{Name: param.Name, Source: describeSource(param), Outcome: StepNotReached}

		if r.canContinue() {
			step.Outcome = StepDone

			if value, err := r.evaluateParam(ctx, param, &step); err != nil {
				r.handleMissingParam(param, err, &step)
			} else {
				r.setParam(param, value, &step)
			}
		}

		r.result.Trace.Params = append(r.result.Trace.Params, step)
	}
}

// setParam sets the variable of a param. It adds the value to the trace only with
// Options.IncludeValues, and never adds the content of a file.
func (r *run) setParam(param *task.Param, value any, step *Step) {
	r.vars[param.Name] = value

	switch {
	case !r.p.IncludeValues:
	case param.File != nil:
		step.Value = log.Redacted
	default:
		step.Value = value
	}
}

// handleMissingParam handles a param without a value. A param with an absent value gets its default.
// The default does not replace a value that could not be read, for example because a call failed.
func (r *run) handleMissingParam(param *task.Param, err error, step *Step) {
	if err != errAbsent { //nolint:errorlint // a wrapped error has more information
		step.Error = err.Error()
	}

	if r.isResourceMissing {
		step.Outcome = StepFailed

		return
	}

	switch {
	case param.APICall != nil && !errors.Is(err, errAbsent), isHardError(err), param.Required && param.Default == nil:
		step.Outcome = StepFailed
		r.recordFailure(PhaseParams, param.Name, fmt.Errorf("param %s: %w", param.Name, err))
	case param.Default != nil:
		step.Outcome = StepDefault
		r.setParam(param, param.Default, step)
	default:
		step.Outcome = StepAbsent
	}
}

// evaluateParam returns the value of a param, and errAbsent if the value is absent or null.
func (r *run) evaluateParam(ctx context.Context, param *task.Param, step *Step) (any, error) {
	var (
		value any
		err   error
	)

	switch {
	case param.Path != nil:
		value, _ = param.Path.Lookup(r.vars)
	case param.Expression != nil:
		value, err = param.Expression.Eval(ctx, r.vars)
	case param.File != nil:
		value, err = readFile(param.File)
	case param.APICall != nil:
		value, err = r.fetch(ctx, param.APICall, step)
	}

	if err != nil {
		return nil, err
	}

	if value == nil {
		return nil, errAbsent
	}

	// Files and environment variables can contain any bytes, and JSON can't.
	if text, ok := value.(string); ok && !utf8.ValidString(text) {
		return nil, errors.New("the value is not valid UTF-8")
	}

	return task.Convert(value, param.Type)
}

// readFile reads the file of a param, for each event again. Its error contains the path of the file, but
// not its content.
func readFile(source *adapter.FileSource) (any, error) {
	file, err := os.Open(source.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errAbsent, err)
	}

	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // the file was only read

	data, err := io.ReadAll(io.LimitReader(file, maxParamFileSize+1))
	if err != nil {
		return nil, err
	}

	if len(data) > maxParamFileSize {
		return nil, fmt.Errorf("file %s is larger than %d bytes", source.Path, maxParamFileSize)
	}

	if source.Trim == nil || *source.Trim {
		return strings.TrimSpace(string(data)), nil
	}

	return string(data), nil
}

func describeSource(param *task.Param) string {
	switch {
	case param.Path != nil:
		return param.Path.String()
	case param.Expression != nil:
		return "expression: " + param.Expression.String()
	case param.File != nil:
		return "file: " + param.File.Path
	case param.APICall != nil:
		return "api_call: " + param.APICall.Method + " " + param.APICall.URL.String()
	default:
		return ""
	}
}
