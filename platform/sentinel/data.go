// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sentinel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

var errList = errors.New("write a string with a CEL expression, a map, a number or a bool: write a list as CEL, '[...]'")

// data is the compiled message_data: a tree of maps, programs and literals. If the tree is nil,
// events have only the fields that every event has.
type data struct{ tree map[string]any }

func compileData(source map[string]any) (*data, error) {
	if len(source) == 0 {
		return &data{}, nil
	}

	env, err := cel.New(cel.Options{Variables: cel.NewDynVariables("resource", "reason")})
	if err != nil {
		return nil, err
	}

	var problems strictyaml.KeyErrors

	tree := compileMap(env, strictyaml.Path{"message_data"}, source, &problems)
	if err := problems.Err(); err != nil {
		return nil, err
	}

	return &data{tree: tree}, nil
}

// compileMap compiles each string in a mapping as an expression, keeps other scalars, and adds a problem
// for each list.
func compileMap(env *cel.Env, path strictyaml.Path, source map[string]any, problems *strictyaml.KeyErrors) map[string]any {
	out := map[string]any{}

	for _, key := range slices.Sorted(maps.Keys(source)) {
		keyPath := path.Append(key)

		switch value := source[key].(type) {
		case map[string]any:
			out[key] = compileMap(env, keyPath, value, problems)
		case string:
			program, err := env.Compile(value)
			problems.Add(err, keyPath...)

			out[key] = program
		case []any:
			problems.Add(errList, keyPath...)
		default:
			out[key] = value
		}
	}

	return out
}

// needsResource returns true if entries need the resource with all its fields.
func (d *data) needsResource() bool { return d.tree != nil }

// build returns the data of an event. It contains the fields of every event, which message_data can
// override but not remove. A value of message_data that is null or an optional without a value is
// left out.
func (d *data) build(ctx context.Context, e *entry, reason string) (map[string]any, error) {
	out := map[string]any{"id": e.id, "kind": e.kind.Value(), "href": e.href(), "generation": e.generation}
	if e.owner != nil {
		out["owner_references"] = *e.owner
	}

	if d.tree == nil {
		return out, nil
	}

	resource, err := e.resource()
	if err != nil {
		return nil, err
	}

	rendered, err := render(ctx, d.tree, "message_data", map[string]any{"resource": resource, "reason": reason})
	if err != nil {
		return nil, err
	}

	maps.Copy(out, rendered)

	return out, nil
}

// render evaluates the expressions of a compiled mapping. It leaves out keys whose value is null.
func render(ctx context.Context, tree map[string]any, path string, vars map[string]any) (map[string]any, error) {
	out := map[string]any{}

	for key, node := range tree {
		var (
			value any
			err   error
		)

		switch node := node.(type) {
		case map[string]any:
			value, err = render(ctx, node, path+"."+key, vars)
		case *cel.Program:
			if value, err = node.Eval(ctx, vars); err != nil {
				err = fmt.Errorf("%s.%s: %w", path, key, err)
			}
		default:
			value = node
		}

		if err != nil {
			return nil, err
		}

		if value != nil {
			out[key] = value
		}
	}

	return out, nil
}
