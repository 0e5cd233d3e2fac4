// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"regexp"
	"slices"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// mutableField matches a path or an expression that reads a field of a resource that PATCH can change.
var mutableField = regexp.MustCompile(`(^|\.\??)(spec|labels)\b`)

// checkMutableName warns if the name, the namespace or the kind of an entry's object depends on a field of the resource
// that can change. The adapter then deletes the object of the old name. It sets NameCanChange of the entry.
func (l *loader) checkMutableName(keyPath strictyaml.Path, out *Resource) {
	if out.Manifest == nil || out.Retention != nil {
		return
	}

	mutable := l.listMutableVariables()

	for _, part := range []struct {
		path     strictyaml.Path
		template *Template
	}{
		{strictyaml.Path{"manifest", "metadata", "name"}, out.Manifest.fieldTemplate("metadata", "name")},
		{strictyaml.Path{"manifest", "metadata", "namespace"}, out.Manifest.fieldTemplate("metadata", "namespace")},
		{strictyaml.Path{"manifest", "kind"}, out.Manifest.fieldTemplate("kind")},
		{strictyaml.Path{"transport", "maestro", "target_cluster"}, out.TargetCluster},
		{strictyaml.Path{"discovery", "by_name"}, out.Discovery.ByName},
		{strictyaml.Path{"discovery", "namespace"}, out.Discovery.Namespace},
	} {
		if part.template == nil {
			continue
		}

		for _, reference := range part.template.references {
			source := mutable[reference.variable]
			if source == "" && slices.Contains([]string{"spec", "labels"}, reference.field) {
				source = reference.field
			}

			if source == "" {
				continue
			}

			l.warnf(keyPath.Append(part.path...), "use the ID or the name of the resource, if the object has to stay",
				"it depends on %s of the resource, which can change: the adapter then creates another object, and deletes this one", source)

			out.NameCanChange = true

			return
		}
	}
}

// listMutableVariables returns the variables whose value comes from a field of a resource that can change, with the
// field.
func (l *loader) listMutableVariables() map[string]string {
	out := map[string]string{}

	addIfMutable := func(name, text string, variables []string) {
		if match := mutableField.FindStringSubmatch(text); match != nil {
			out[name] = match[2]
		}

		for _, variable := range variables {
			if source := out[variable]; source != "" && out[name] == "" {
				out[name] = source
			}
		}
	}

	for i := range l.task.Preconditions {
		for _, capture := range l.task.Preconditions[i].Capture {
			addIfMutable(capture.Name, capture.Field, nil)

			if capture.Expression != nil {
				addIfMutable(capture.Name, capture.Expression.String(), capture.Expression.Variables())
			}
		}
	}

	for i := range l.task.Params {
		param := &l.task.Params[i]

		switch {
		case param.Path != nil:
			addIfMutable(param.Name, param.Path.String(), []string{param.Path.Variable})
		case param.Expression != nil:
			addIfMutable(param.Name, param.Expression.String(), param.Expression.Variables())
		}
	}

	return out
}
