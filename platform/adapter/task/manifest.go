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

// compileManifest compiles a manifest, which is an object, a block string, or {ref: PATH}.
func (l *loader) compileManifest(keyPath strictyaml.Path, in *adapter.Resource, out *Resource) {
	switch typed := in.Manifest.(type) {
	case nil:
	case string:
		out.Manifest = l.compileBlock(keyPath, typed)
	case map[string]any:
		if ref, ok := typed["ref"].(string); ok && len(typed) == 1 {
			out.Manifest = l.compileReference(keyPath.Append("ref"), ref)

			return
		}

		out.Manifest = l.compileManifestTree(keyPath, typed)
	default:
		l.addProblem(keyPath, "want an object, a block string or {ref: PATH}")
	}
}

// compileManifestTree compiles a manifest that is a mapping, and adds a problem for each missing required
// key.
func (l *loader) compileManifestTree(keyPath strictyaml.Path, in map[string]any) *Manifest {
	for _, key := range []string{"apiVersion", "kind", "metadata"} {
		if !l.doc.HasValue(keyPath.Append(key)) {
			l.addProblem(keyPath, "a manifest needs %s", key)
		}
	}

	if l.doc.HasValue(keyPath.Append("metadata")) && !l.doc.HasValue(keyPath.Append("metadata", "name")) {
		l.addProblem(keyPath.Append("metadata"), "a manifest needs metadata.name").
			Hint = "the adapter can't find an object whose name the API server generates"
	}

	return &Manifest{tree: l.compileTree(keyPath, in, templatesOnly)}
}

// compileReference compiles a manifest in a separate file. It compiles a tree if the file is valid
// YAML before rendering, and a block otherwise.
func (l *loader) compileReference(keyPath strictyaml.Path, name string) (out *Manifest) {
	data, err := l.readFile(name)
	if err != nil {
		problem := l.addProblem(keyPath, "%v", err)
		if filepath.IsAbs(name) {
			problem.Hint = "this path needs a task file in " + filepath.Dir(name) + "; here write ref: " + filepath.Base(name)
		}

		return nil
	}

	label := filepath.Join(l.folder, name)

	doc, in, err := parseObject(label, data)

	switch {
	case err == nil:
		l.withDocument(doc, func() { out = l.compileManifestTree(nil, in) })
	case !strings.Contains(string(data), "{{"):
		l.problems = append(l.problems, toProblems(err)...)
	default:
		// The file is not YAML before rendering, so problems get no position in the file.
		if doc, err = strictyaml.Parse(label, nil); err != nil {
			l.addProblem(keyPath, "%v", err)

			return nil
		}

		l.withDocument(doc, func() { out = l.compileBlock(nil, string(data)) })
	}

	return out
}

// nameTemplate returns the template of metadata.name, the whole template if the manifest is a block
// string, and nil if the manifest is nil.
func (m *Manifest) nameTemplate() *Template {
	if m == nil {
		return nil
	}

	if m.block != nil {
		return m.block.Template
	}

	return m.fieldTemplate("metadata", "name")
}

// fieldTemplate returns the template at a path of a manifest that is a tree. It returns nil if the
// manifest is not a tree or the path does not lead to a string.
func (m *Manifest) fieldTemplate(path ...string) *Template {
	if m == nil || m.tree == nil {
		return nil
	}

	value := m.tree.root
	for _, key := range path {
		value = findChild(value, key)
	}

	out, _ := value.(*Template) // nil if the value is not a string

	return out
}

func findChild(in any, key string) any {
	mapping, ok := in.(templateMap)
	if !ok {
		return nil
	}

	for _, entry := range mapping {
		if entry.key.String() == key {
			return entry.value
		}
	}

	return nil
}

// withLeaves and templatesOnly are the values of the parameter hasLeaves.
const withLeaves, templatesOnly = true, false

// compileTree compiles a value whose strings are templates. If hasLeaves is true, a mapping with only
// field or expression and an optional default becomes the value of a path or an expression.
func (l *loader) compileTree(keyPath strictyaml.Path, in any, hasLeaves bool) *Tree {
	return &Tree{root: l.compileNode(keyPath, in, hasLeaves)}
}

// compileNode compiles a value of a tree: strings and keys become templates, and numbers, booleans and
// nulls stay as they are.
func (l *loader) compileNode(keyPath strictyaml.Path, in any, hasLeaves bool) any {
	switch typed := in.(type) {
	case string:
		out := l.compileTemplate(keyPath, typed)
		if out == nil {
			return nil
		}

		return out
	case []any:
		out := make([]any, len(typed))
		for i, item := range typed {
			out[i] = l.compileNode(keyPath.Append(i), item, hasLeaves)
		}

		return out
	case map[string]any:
		if hasLeaves && isLeaf(typed) {
			return l.compileLeaf(keyPath, typed)
		}

		out := make(templateMap, 0, len(typed))

		for _, key := range slices.Sorted(maps.Keys(typed)) {
			name := l.compileTemplate(keyPath.Append(key), key)
			if name == nil {
				continue
			}

			out = append(out, mapEntry{key: name, value: l.compileNode(keyPath.Append(key), typed[key], hasLeaves)})
		}

		return out
	default:
		return in
	}
}

// isLeaf reports whether a mapping has field or expression, and no other key except default.
func isLeaf(in map[string]any) bool {
	_, hasField := in["field"].(string)
	_, hasExpression := in["expression"].(string)

	for key := range in {
		if !slices.Contains([]string{"field", "expression", "default"}, key) {
			return false
		}
	}

	return hasField || hasExpression
}

func (l *loader) compileLeaf(keyPath strictyaml.Path, in map[string]any) *leaf {
	out := &leaf{defaultValue: in["default"]}

	field, hasField := in["field"].(string)
	expression, hasExpression := in["expression"].(string)

	switch {
	case hasField && hasExpression:
		l.addProblem(keyPath, "want exactly one of field and expression")
	case hasField:
		out.path = l.compilePath(keyPath.Append("field"), field, fromVariable)
	default:
		out.expression = l.compileExpression(l.env, keyPath.Append("expression"), expression, asValue)
	}

	return out
}
