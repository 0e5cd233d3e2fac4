// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// manifest compiles what stands there: a mapping, a block string, or {ref: PATH}.
func (l *loader) manifest(at strictyaml.Path, in *adapter.Resource, out *Resource) {
	switch typed := in.Manifest.(type) {
	case nil:
	case string:
		out.Manifest = l.block(at, typed)
	case map[string]any:
		if ref, ok := typed["ref"].(string); ok && len(typed) == 1 {
			out.Manifest = l.reference(at.With("ref"), ref)

			return
		}

		out.Manifest = l.mapping(at, typed)
	default:
		l.problem(at, "want an object, a block string or {ref: PATH}")
	}
}

func (l *loader) mapping(at strictyaml.Path, in map[string]any) *Manifest {
	for _, key := range []string{"apiVersion", "kind", "metadata"} {
		if !l.doc.Has(at.With(key)) {
			l.problem(at, "a manifest needs %s", key)
		}
	}

	if l.doc.Has(at.With("metadata")) && !l.doc.Has(at.With("metadata", "name")) {
		l.problem(at.With("metadata"), "a manifest needs metadata.name").
			Hint = "a name that the API server makes up can't be found again"
	}

	return &Manifest{tree: l.tree(at, in, false)}
}

func (l *loader) block(at strictyaml.Path, text string) *Manifest {
	out := l.template(at, text)
	if out == nil {
		return nil
	}

	if out.Constant() {
		object, err := parseBlock(text)
		if err == nil {
			err = checkObject(object)
		}

		if err != nil {
			l.problem(at, "%v", err)
		}
	}

	return &Manifest{block: out}
}

// reference is a manifest in a file of its own: a tree where the file is YAML as it
// stands, else a block.
func (l *loader) reference(at strictyaml.Path, name string) (out *Manifest) {
	data, err := l.read(name)
	if err != nil {
		problem := l.problem(at, "%v", err)
		if filepath.IsAbs(name) {
			problem.Hint = "it is read where the task file is in " + filepath.Dir(name) + "; here write ref: " + filepath.Base(name)
		}

		return nil
	}

	label := filepath.Join(l.folder, name)

	doc, in, err := object(label, data)

	switch {
	case err == nil:
		l.within(doc, func() { out = l.mapping(nil, in) })
	case !strings.Contains(string(data), "{{"):
		l.problems = append(l.problems, problemsOf(err)...)
	default:
		// It is no YAML yet, and its problems have no place in it.
		if doc, err = strictyaml.Parse(label, nil); err != nil {
			l.problem(at, "%v", err)

			return nil
		}

		l.within(doc, func() { out = l.block(nil, string(data)) })
	}

	return out
}

// name is the template of metadata.name; the whole block where it is one; nil where
// there is no manifest.
func (m *Manifest) name() *Template {
	if m == nil {
		return nil
	}

	if m.block != nil {
		return m.block
	}

	return m.field("metadata", "name")
}

// field is the template of a text in a manifest that is a tree; nil where there is none.
func (m *Manifest) field(path ...string) *Template {
	if m == nil || m.tree == nil {
		return nil
	}

	value := m.tree.root
	for _, key := range path {
		value = childOf(value, key)
	}

	out, _ := value.(*Template) // nil for what is no text

	return out
}

func childOf(in any, key string) any {
	mapping, ok := in.(tree)
	if !ok {
		return nil
	}

	for _, one := range mapping {
		if one.key.String() == key {
			return one.value
		}
	}

	return nil
}

// tree compiles a value whose texts are templates. With leaves, mappings with field or
// expression, and perhaps default, are values out of variables.
func (l *loader) tree(at strictyaml.Path, in any, leaves bool) *Tree {
	return &Tree{root: l.compile(at, in, leaves)}
}

func (l *loader) compile(at strictyaml.Path, in any, leaves bool) any {
	switch typed := in.(type) {
	case string:
		out := l.template(at, typed)
		if out == nil {
			return nil
		}

		return out
	case []any:
		out := make([]any, len(typed))
		for i, item := range typed {
			out[i] = l.compile(at.With(i), item, leaves)
		}

		return out
	case map[string]any:
		if leaves && isLeaf(typed) {
			return l.leaf(at, typed)
		}

		out := make(tree, 0, len(typed))

		for _, key := range slices.Sorted(maps.Keys(typed)) {
			name := l.template(at.With(key), key)
			if name == nil {
				continue
			}

			out = append(out, branch{key: name, value: l.compile(at.With(key), typed[key], leaves)})
		}

		return out
	default:
		return in
	}
}

// isLeaf says whether a mapping is {field|expression, default}.
func isLeaf(in map[string]any) bool {
	_, field := in["field"].(string)
	_, expression := in["expression"].(string)

	for key := range in {
		if !slices.Contains([]string{"field", "expression", "default"}, key) {
			return false
		}
	}

	return field || expression
}

func (l *loader) leaf(at strictyaml.Path, in map[string]any) *leaf {
	out := &leaf{otherwise: in["default"]}

	field, hasField := in["field"].(string)
	expression, hasExpression := in["expression"].(string)

	switch {
	case hasField && hasExpression:
		l.problem(at, "want exactly one of field and expression")
	case hasField:
		out.path = l.path(at.With("field"), field, false)
	default:
		out.expression = l.expression(l.env, at.With("expression"), expression, false)
	}

	return out
}
