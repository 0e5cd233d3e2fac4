// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// Tree is a YAML value whose strings are templates. It is safe for concurrent use.
type Tree struct {
	// root is a templateMap, []any, *Template, *leaf, or a value that Render returns unchanged.
	root any
}

// templateMap is a mapping whose keys are templates as well.
type templateMap []mapEntry

type mapEntry struct {
	key   *Template
	value any
}

// leaf is the value of a path or an expression, with a default. Exactly one of path and
// expression is set.
type leaf struct {
	path         *Path
	expression   *cel.Program
	defaultValue any
}

// Render renders the templates with the values of vars. Its error contains the path of the
// template, but no value.
func (t *Tree) Render(ctx context.Context, vars map[string]any) (any, error) {
	return renderNode(ctx, t.root, vars, nil)
}

func renderNode(ctx context.Context, in any, vars map[string]any, path strictyaml.Path) (any, error) {
	switch typed := in.(type) {
	case templateMap:
		return renderMap(ctx, typed, vars, path)
	case []any:
		out := make([]any, len(typed))

		for i, item := range typed {
			value, err := renderNode(ctx, item, vars, path.Append(i))
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

func renderMap(ctx context.Context, in templateMap, vars map[string]any, path strictyaml.Path) (any, error) {
	out := make(map[string]any, len(in))

	for _, entry := range in {
		key, err := entry.key.Render(vars)
		if err != nil {
			return nil, fmt.Errorf("key of %s: %w", path.Append(entry.key.String()), err)
		}

		if _, exists := out[key]; exists {
			return nil, fmt.Errorf("key of %s: another key renders to the same text", path.Append(entry.key.String()))
		}

		value, err := renderNode(ctx, entry.value, vars, path.Append(key))
		if err != nil {
			return nil, err
		}

		out[key] = value
	}

	return out, nil
}

// render returns the value, or the default if the value is null. It also returns the default if
// the expression fails, unless the expression has exceeded a limit or ctx has ended.
func (l *leaf) render(ctx context.Context, vars map[string]any) (any, error) {
	var value any

	if l.path != nil {
		value, _ = l.path.Lookup(vars)
	} else {
		var err error
		if value, err = l.expression.Eval(ctx, vars); err != nil {
			if l.defaultValue != nil && !errors.Is(err, cel.ErrCostLimit) && !errors.Is(err, cel.ErrTimeout) && ctx.Err() == nil {
				return l.defaultValue, nil
			}

			return nil, err
		}
	}

	if value == nil {
		return l.defaultValue, nil
	}

	return value, nil
}

// Manifest is a template of an object: a tree, or a block string that renders to YAML.
type Manifest struct {
	tree  *Tree
	block *block
	// lowersName is true if names of the kind have to be lower case.
	lowersName bool
}

// RenderObject renders the object. It returns an error if apiVersion, kind or metadata.name is
// missing, and removes labels and annotations that are null. A name that is valid only in lower case is converted.
func (m *Manifest) RenderObject(ctx context.Context, vars map[string]any) (map[string]any, error) {
	var object map[string]any

	if m.tree != nil {
		value, err := m.tree.Render(ctx, vars)
		if err != nil {
			return nil, fmt.Errorf("render manifest: %w", err)
		}

		object, _ = value.(map[string]any) // the loader accepts only mappings
	} else {
		var err error
		if object, err = m.block.render(vars); err != nil {
			return nil, fmt.Errorf("render manifest: %w", err)
		}
	}

	if err := checkObject(object); err != nil {
		return nil, err
	}

	metadata, _ := object["metadata"].(map[string]any)
	if name, ok := metadata["name"].(string); ok && m.lowersName {
		metadata["name"] = toLowerName(name)
	}

	return object, nil
}

// ReadsClock reports whether the manifest renders differently at another time.
func (m *Manifest) ReadsClock() bool {
	if m.block != nil {
		return m.block.readsClock || m.block.readsNow()
	}

	return nodeReadsClock(m.tree.root)
}

func nodeReadsClock(in any) bool {
	switch typed := in.(type) {
	case templateMap:
		return slices.ContainsFunc(typed, func(e mapEntry) bool { return nodeReadsClock(e.key) || nodeReadsClock(e.value) })
	case []any:
		return slices.ContainsFunc(typed, nodeReadsClock)
	case *Template:
		return typed.readsClock || typed.readsNow()
	default:
		return false
	}
}

func checkObject(object map[string]any) error {
	for _, key := range []string{"apiVersion", "kind"} {
		if value, ok := object[key].(string); !ok || value == "" {
			return fmt.Errorf("rendered manifest: %s is missing or not a string", key)
		}
	}

	metadata, ok := object["metadata"].(map[string]any)
	if !ok {
		return errors.New("rendered manifest: metadata is missing")
	}

	if name, ok := metadata["name"].(string); !ok || name == "" {
		return errors.New("rendered manifest: metadata.name is missing, empty or not a string")
	}

	for _, key := range []string{"labels", "annotations"} {
		if value, ok := metadata[key]; ok && value == nil {
			delete(metadata, key)
		}
	}

	return nil
}
