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

// strictErrors gathers errors about keys of the configuration.
type strictErrors []error

func (e *strictErrors) add(err error, path ...any) {
	*e = append(*e, &strictyaml.KeyError{Path: path, Err: err})
}

var errList = errors.New("write text (CEL), a map, a number or a bool; a list is CEL: '[...]'")

// data is message_data, compiled: maps, programs and literals. Nil: only what every event
// says.
type data struct{ tree map[string]any }

// compileData compiles message_data.
func compileData(from map[string]any) (*data, error) {
	if len(from) == 0 {
		return &data{}, nil
	}

	env, err := cel.New(cel.Options{Variables: cel.Dyn("resource", "reason")})
	if err != nil {
		return nil, err
	}

	var problems strictErrors

	tree := compileMap(env, strictyaml.Path{"message_data"}, from, &problems)
	if err := errors.Join(problems...); err != nil {
		return nil, err
	}

	return &data{tree: tree}, nil
}

func compileMap(env *cel.Env, path strictyaml.Path, from map[string]any, problems *strictErrors) map[string]any {
	out := map[string]any{}

	for _, key := range slices.Sorted(maps.Keys(from)) {
		at := path.With(key)

		switch value := from[key].(type) {
		case map[string]any:
			out[key] = compileMap(env, at, value, problems)
		case string:
			program, err := env.Compile(value)
			if err != nil {
				problems.add(err, at...)
			}

			out[key] = program
		case []any:
			problems.add(errList, at...)
		default:
			out[key] = value
		}
	}

	return out
}

// whole says whether entries need the resource with all its fields.
func (d *data) whole() bool { return d.tree != nil }

// of gives the data of an event. What every event says is there whatever message_data
// says beside; a value that is null, or an optional without one, is left out.
func (d *data) of(ctx context.Context, e *entry, reason string) (map[string]any, error) {
	out := map[string]any{"id": e.id, "kind": e.kind, "href": e.href, "generation": e.generation}
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

	said, err := render(ctx, d.tree, "message_data", map[string]any{"resource": resource, "reason": reason})
	if err != nil {
		return nil, err
	}

	maps.Copy(out, said)

	return out, nil
}

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
