// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// context is for expressions without variables, that are evaluated when they are loaded;
// each has its limits.
func (l *loader) context() context.Context { return context.Background() }

// manifest compiles what stands there: a mapping, a block string, or {ref: PATH}.
func (l *loader) manifest(at strictyaml.Path, in *adapter.Resource, out *Resource) {
	switch typed := in.Manifest.(type) {
	case nil:
	case string:
		out.Manifest = l.block(l.doc, at, typed)
	case map[string]any:
		if ref, ok := typed["ref"].(string); ok && len(typed) == 1 {
			out.Manifest = l.reference(at.With("ref"), ref)

			return
		}

		out.Manifest = l.object(l.doc, at, typed)
	default:
		l.problem(at, "want an object, a block string or {ref: PATH}")
	}
}

func (l *loader) object(doc *strictyaml.Document, at strictyaml.Path, in map[string]any) *Manifest {
	for _, key := range []string{"apiVersion", "kind", "metadata"} {
		if !doc.Has(at.With(key)) {
			l.problems = append(l.problems, doc.At(at, "a manifest needs %s", key))
		}
	}

	if doc.Has(at.With("metadata")) && !doc.Has(at.With("metadata", "name")) {
		l.problems = append(l.problems, doc.At(at.With("metadata"), "a manifest needs metadata.name").
			WithHint("a name that the API server makes up can't be found again"))
	}

	return &Manifest{tree: l.tree(doc, at, in, false)}
}

func (l *loader) block(doc *strictyaml.Document, at strictyaml.Path, text string) *Manifest {
	out := l.templateIn(doc, at, text)
	if out == nil {
		return nil
	}

	if out.Constant() {
		object, err := parseBlock(text)
		if err == nil {
			err = checkObject(object)
		}

		if err != nil {
			l.problems = append(l.problems, doc.At(at, "%v", err))
		}
	}

	return &Manifest{block: out}
}

// reference is a manifest in a file of its own: a tree where the file is YAML as it
// stands, else a block.
func (l *loader) reference(at strictyaml.Path, name string) *Manifest {
	data, err := l.readBytes(name)
	if err != nil {
		problem := l.problem(at, "%v", err)
		if filepath.IsAbs(name) {
			problem.Hint = "it is read where the task file is in " + filepath.Dir(name) + "; here write ref: " + filepath.Base(name)
		}

		return nil
	}

	label := filepath.Join(l.folder, name)

	object := map[string]any{}

	doc, err := strictyaml.Parse(label, data)
	if err == nil {
		err = doc.Decode(&object)
	}

	if err == nil {
		return l.object(doc, nil, object)
	}

	if !strings.Contains(string(data), "{{") {
		l.problems = append(l.problems, problemsOf(err)...)

		return nil
	}

	empty, err := strictyaml.Parse(label, nil)
	if err != nil {
		l.problem(at, "%v", err)

		return nil
	}

	return l.block(empty, nil, string(data))
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
func (l *loader) tree(doc *strictyaml.Document, at strictyaml.Path, in any, leaves bool) *Tree {
	return &Tree{root: l.compile(doc, at, in, leaves)}
}

func (l *loader) compile(doc *strictyaml.Document, at strictyaml.Path, in any, leaves bool) any {
	switch typed := in.(type) {
	case string:
		out := l.templateIn(doc, at, typed)
		if out == nil {
			return nil
		}

		return out
	case []any:
		out := make([]any, len(typed))
		for i, item := range typed {
			out[i] = l.compile(doc, at.With(i), item, leaves)
		}

		return out
	case map[string]any:
		if leaves && isLeaf(typed) {
			return l.leaf(doc, at, typed)
		}

		out := make(tree, 0, len(typed))

		for _, key := range slices.Sorted(maps.Keys(typed)) {
			name := l.templateIn(doc, at.With(key), key)
			if name == nil {
				continue
			}

			out = append(out, branch{key: name, value: l.compile(doc, at.With(key), typed[key], leaves)})
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

func (l *loader) leaf(doc *strictyaml.Document, at strictyaml.Path, in map[string]any) *leaf {
	// Problems of paths and expressions are placed by the file they are in.
	main := l.doc
	l.doc = doc

	defer func() { l.doc = main }()

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
