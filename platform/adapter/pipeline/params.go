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

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
	"github.com/hyperfleet/hyperfleet/platform/cel"
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
		trace := ParamTrace{Name: param.Name, Source: source(param), Outcome: StepDone}

		value, err := r.param(ctx, param, &trace)
		if err == nil {
			r.vars[param.Name] = value
			trace.Value = r.shown(param, value)
		} else {
			r.missing(param, err, &trace)
		}

		r.result.Trace.Params = append(r.result.Trace.Params, trace)

		if !r.going() {
			r.notReached(i + 1)

			return
		}
	}
}

func (r *run) notReached(from int) {
	for i := from; i < len(r.p.Task.Params); i++ {
		param := &r.p.Task.Params[i]
		r.result.Trace.Params = append(r.result.Trace.Params,
			ParamTrace{Name: param.Name, Source: source(param), Outcome: StepNotReached})
	}
}

// missing decides about a param without a value. A default stands in for what is not
// there; it does not hide that the place where it might be could not be looked at.
func (r *run) missing(param *task.Param, err error, trace *ParamTrace) {
	if err != errAbsent { //nolint:errorlint // a wrapped one says more than that
		trace.Error = err.Error()
	}

	if r.gone {
		trace.Outcome = StepFailed

		return
	}

	hard := param.APICall != nil && !errors.Is(err, errAbsent) || mayPass(err) ||
		errors.Is(err, cel.ErrCost) || errors.Is(err, cel.ErrTime)

	switch {
	case hard, param.Required && param.Default == nil:
		trace.Outcome = StepFailed
		r.fail(PhaseParams, param.Name, fmt.Errorf("param %s: %w", param.Name, err))
	case param.Default != nil:
		trace.Outcome = StepDefault
		r.vars[param.Name] = param.Default
		trace.Value = r.shown(param, param.Default)
	default:
		trace.Outcome = StepAbsent
	}
}

// param takes one value.
func (r *run) param(ctx context.Context, param *task.Param, trace *ParamTrace) (any, error) {
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
		value, trace.Call, err = r.fetch(ctx, param.APICall)
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
func readFile(from *task.File) (any, error) {
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

	if from.Trim {
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

// shown is a value as the trace has it: only for dry runs, and never what a file holds.
func (r *run) shown(param *task.Param, value any) any {
	switch {
	case !r.p.Values:
		return nil
	case param.File != nil:
		return log.Redacted
	default:
		return value
	}
}
