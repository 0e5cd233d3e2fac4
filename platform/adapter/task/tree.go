// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// Tree is a YAML value whose texts are templates. It is safe for concurrent use.
type Tree struct {
	// root is tree, []any, *Template, *leaf, or a value that stays as it is.
	root any
}

// tree is a mapping; its keys are templates, too.
type tree []branch

type branch struct {
	key   *Template
	value any
}

// leaf is a value out of a path or an expression, with a default. Exactly one of path and
// expression is set.
type leaf struct {
	path       *Path
	expression *cel.Program
	otherwise  any
}

// Render gives the value with what vars has. Its error says where, and holds no value.
func (t *Tree) Render(ctx context.Context, vars map[string]any) (any, error) {
	return renderNode(ctx, t.root, vars, nil)
}

func renderNode(ctx context.Context, in any, vars map[string]any, path strictyaml.Path) (any, error) {
	switch typed := in.(type) {
	case tree:
		return renderMap(ctx, typed, vars, path)
	case []any:
		out := make([]any, len(typed))

		for i, item := range typed {
			value, err := renderNode(ctx, item, vars, path.With(i))
			if err != nil {
				return nil, err
			}

			out[i] = value
		}

		return out, nil
	case *Template:
		text, err := typed.Render(vars)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}

		return text, nil
	case *leaf:
		value, err := typed.render(ctx, vars)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}

		return value, nil
	default:
		return in, nil
	}
}

func renderMap(ctx context.Context, in tree, vars map[string]any, path strictyaml.Path) (any, error) {
	out := make(map[string]any, len(in))

	for _, one := range in {
		key, err := one.key.Render(vars)
		if err != nil {
			return nil, fmt.Errorf("key of %s: %w", path.With(one.key.String()), err)
		}

		if _, twice := out[key]; twice {
			return nil, fmt.Errorf("key of %s: it is rendered to the same as another one", path.With(one.key.String()))
		}

		value, err := renderNode(ctx, one.value, vars, path.With(key))
		if err != nil {
			return nil, err
		}

		out[key] = value
	}

	return out, nil
}

// render is the value; the default stands in where there is none, or it is null.
func (l *leaf) render(ctx context.Context, vars map[string]any) (any, error) {
	var value any

	if l.path != nil {
		value, _ = l.path.Lookup(vars)
	} else {
		var err error
		if value, err = l.expression.Eval(ctx, vars); err != nil {
			if l.otherwise != nil && !errors.Is(err, cel.ErrCost) && !errors.Is(err, cel.ErrTime) && ctx.Err() == nil {
				return l.otherwise, nil
			}

			return nil, err
		}
	}

	if value == nil {
		return l.otherwise, nil
	}

	return value, nil
}

// Manifest is an object to render: a tree, or a block string that is YAML once it was
// rendered.
type Manifest struct {
	tree  *Tree
	block *Template
}

// RenderObject gives the object. It has apiVersion, kind and metadata.name; labels and
// annotations that are null are left out.
func (m *Manifest) RenderObject(ctx context.Context, vars map[string]any) (map[string]any, error) {
	var object map[string]any

	if m.tree != nil {
		value, err := m.tree.Render(ctx, vars)
		if err != nil {
			return nil, fmt.Errorf("render manifest: %w", err)
		}

		object, _ = value.(map[string]any) // the loader has seen to it
	} else {
		text, err := m.block.Render(vars)
		if err != nil {
			return nil, fmt.Errorf("render manifest: %w", err)
		}

		if object, err = parseBlock(text); err != nil {
			return nil, err
		}
	}

	return object, checkObject(object)
}

// parseBlock reads a rendered block. YAML's errors may have pieces of values in them, so
// that their places alone are said.
func parseBlock(text string) (map[string]any, error) {
	_, object, err := object("manifest", []byte(text))

	var problems strictyaml.Problems
	if errors.As(err, &problems) {
		first := problems[0]

		return nil, fmt.Errorf("read rendered manifest: line %d, column %d is not YAML of an object", first.Line, first.Column)
	}

	return object, err
}

func checkObject(object map[string]any) error {
	for _, key := range []string{"apiVersion", "kind"} {
		if value, ok := object[key].(string); !ok || value == "" {
			return fmt.Errorf("rendered manifest: %s is missing or not a text", key)
		}
	}

	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return errors.New("rendered manifest: metadata is missing")
	}

	if name, ok := metadata["name"].(string); !ok || name == "" {
		return errors.New("rendered manifest: metadata.name is missing, empty or not a text")
	}

	for _, key := range []string{"labels", "annotations"} {
		if value, ok := metadata[key]; ok && value == nil {
			delete(metadata, key)
		}
	}

	return nil
}
