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

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
)

// maxParamFile is how long a file of a param may be, in bytes.
const maxParamFile = 1 << 20

// errAbsent is a value that is not there.
var errAbsent = errors.New("there is no value")

// params takes the params in their order. One that is required and has no value ends the
// phase; for one that is optional its default stands in, or null.
func (r *run) params(ctx context.Context) {
	for i := range r.p.Task.Params {
		param := &r.p.Task.Params[i]
		step := Step{Name: param.Name, Source: source(param), Outcome: StepNotReached}

		if r.going() {
			step.Outcome = StepDone

			if value, err := r.param(ctx, param, &step); err != nil {
				r.missing(param, err, &step)
			} else {
				r.give(param, value, &step)
			}
		}

		r.result.Trace.Params = append(r.result.Trace.Params, step)
	}
}

// give makes a value a variable. The trace has it for dry runs alone, and never what a file
// holds.
func (r *run) give(param *task.Param, value any, step *Step) {
	r.vars[param.Name] = value

	switch {
	case !r.p.Values:
	case param.File != nil:
		step.Value = log.Redacted
	default:
		step.Value = value
	}
}

// missing decides about a param without a value. A default stands in for what is not
// there; it does not hide that the place where it might be could not be looked at.
func (r *run) missing(param *task.Param, err error, step *Step) {
	if err != errAbsent { //nolint:errorlint // a wrapped one says more than that
		step.Error = err.Error()
	}

	if r.gone {
		step.Outcome = StepFailed

		return
	}

	switch {
	case param.APICall != nil && !errors.Is(err, errAbsent), hard(err), param.Required && param.Default == nil:
		step.Outcome = StepFailed
		r.fail(PhaseParams, param.Name, fmt.Errorf("param %s: %w", param.Name, err))
	case param.Default != nil:
		step.Outcome = StepDefault
		r.give(param, param.Default, step)
	default:
		step.Outcome = StepAbsent
	}
}

// param takes one value.
func (r *run) param(ctx context.Context, param *task.Param, step *Step) (any, error) {
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

	return task.Convert(value, param.Type)
}

// readFile reads a file anew for each event. Its error names the file, not what is in it.
func readFile(from *adapter.FileSource) (any, error) {
	file, err := os.Open(from.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", errAbsent, err)
	}

	if err != nil {
		return nil, err
	}
	defer file.Close() //nolint:errcheck // it was only read

	data, err := io.ReadAll(io.LimitReader(file, maxParamFile+1))
	if err != nil {
		return nil, err
	}

	if len(data) > maxParamFile {
		return nil, fmt.Errorf("file %s is larger than %d bytes", from.Path, maxParamFile)
	}

	if from.Trim == nil || *from.Trim {
		return strings.TrimSpace(string(data)), nil
	}

	return string(data), nil
}

func source(param *task.Param) string {
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
