// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/api/events"
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// Variables that exist in all expressions or, from varResponse on, only in some of them.
const (
	varEvent     = "event"
	varConfig    = "config"
	varEnv       = "env"
	varAdapter   = "adapter"
	varResources = "resources"
	varResponse  = "response"
	varItem      = "item"
	varItems     = "items"
	varItemIndex = "itemIndex"
)

// Phrases that describe names in messages.
const (
	phraseParam        = "a param"
	phrasePrecondition = "a precondition"
	phraseCapture      = "a captured value"
	phrasePayload      = "a payload"
)

func builtins() []string { return []string{varEvent, varConfig, varEnv, varAdapter} }

func reservedNames() []string {
	return append(builtins(), varResources, varResponse, varItem, varItems, varItemIndex, nowVariable, "true", "false", "null", "in")
}

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	resourceName = regexp.MustCompile(`^[a-z][a-zA-Z0-9_]*$`)
)

// declareNames declares all names of the file, and adds problems for invalid and repeated names.
func (l *loader) declareNames() {
	spec := &l.task.Spec

	for i := range spec.Params {
		keyPath, name := strictyaml.Path{"params", i, "name"}, spec.Params[i].Name

		// Files for other programs repeat params. These programs use the last definition.
		if slices.ContainsFunc(spec.Params[i+1:], func(later adapter.Param) bool { return name != "" && later.Name == name }) {
			l.warnf(keyPath, "remove this definition", "the param %s is defined again below, and the last definition is used", name)

			continue
		}

		l.declareVariable(keyPath, name, phraseParam)
	}

	preconditions := map[string]bool{}

	for i := range spec.Preconditions {
		precondition, keyPath := &spec.Preconditions[i], strictyaml.Path{"preconditions", i}
		l.convertDeprecatedCall(keyPath, precondition)

		switch {
		case precondition.APICall != nil:
			l.declareVariable(keyPath.Append("name"), precondition.Name, phrasePrecondition)
		case precondition.Name == "":
			l.addProblem(keyPath.Append("name"), "a precondition needs a name")
		case preconditions[precondition.Name] || l.declared[precondition.Name] == phrasePrecondition:
			l.addProblem(keyPath.Append("name"), "the name %s is used twice", precondition.Name)
		}

		preconditions[precondition.Name] = true

		for j := range precondition.Capture {
			l.declareVariable(keyPath.Append("capture", j, "name"), precondition.Capture[j].Name, phraseCapture)
		}
	}

	for i := range spec.Post.Payloads {
		l.declareVariable(strictyaml.Path{"post", "payloads", i, "name"}, spec.Post.Payloads[i].Name, phrasePayload)
	}

	for i := range spec.Resources {
		l.declareResourceNames(i)
	}
}

func (l *loader) declareVariable(keyPath strictyaml.Path, name, description string) {
	switch {
	case name == "":
		l.addProblem(keyPath, "%s needs a name", description)
	case !variableName.MatchString(name):
		l.addProblem(keyPath, "%q is not a valid name: use letters, digits and _, and start with a letter or _", name)
	case slices.Contains(reservedNames(), name):
		l.addProblem(keyPath, "the name %s is reserved", name).Hint = "use another name"
	case l.declared[name] != "":
		l.addProblem(keyPath, "the name %s is used twice: it is already the name of %s", name, l.declared[name])
	default:
		l.declared[name] = description
	}
}

// declareResourceNames declares the names of an entry and of its nested discoveries.
func (l *loader) declareResourceNames(i int) {
	resource, keyPath := &l.task.Spec.Resources[i], strictyaml.Path{"resources", i}
	fieldPath := keyPath.Append("name")

	if resource.Alias != "" {
		fieldPath = keyPath.Append("alias")

		if l.acceptDeprecated(fieldPath, "alias", "name", resource.Name != "") {
			resource.Name = resource.Alias
		}
	}

	l.declareResource(fieldPath, resource.Name)

	for j := range resource.NestedDiscoveries {
		l.declareResource(keyPath.Append("nested_discoveries", j, "name"), resource.NestedDiscoveries[j].Name)
	}
}

func (l *loader) declareResource(keyPath strictyaml.Path, name string) {
	switch {
	case name == "":
		l.addProblem(keyPath, "a resource needs a name")
	case !resourceName.MatchString(name):
		l.addProblem(keyPath, "%q is not a valid resource name: use letters, digits and _, and start with a lower-case letter", name)
	case slices.Contains(l.objectNames, name):
		l.addProblem(keyPath, "the name %s is used twice in resources and nested discoveries", name)
	default:
		l.objectNames = append(l.objectNames, name)
	}
}

// orInEvent and fromVariable are the values of the parameter mayBeInEvent.
const orInEvent, fromVariable = true, false

// compilePath parses and checks a path to a value. If mayBeInEvent is true, a path that does not start
// with the name of a variable is a path in the event.
func (l *loader) compilePath(keyPath strictyaml.Path, text string, mayBeInEvent bool) *Path {
	out := parsePath(text)

	switch {
	case text == "" || strings.HasPrefix(text, ".") || strings.HasSuffix(text, ".") || strings.Contains(text, ".."):
		l.addProblem(keyPath, "%q is not a path", text).Hint = "write event.id, env.NAME, config.adapter.name or PARAM.field"

		return nil
	case l.available[out.Variable]:
	case l.declared[out.Variable] != "" || out.Variable == varResources:
		l.reportUnavailable(keyPath, out.Variable)

		return nil
	case mayBeInEvent:
		if hint := l.suggestBare(out.Variable); hint != "" {
			l.addProblem(keyPath, "unknown variable %s", out.Variable).Hint = hint + " For a field of the event, write event." + text

			return nil
		}

		out = Path{Variable: varEvent, Rest: text}
	default:
		names := slices.Collect(maps.Keys(l.available))
		l.addProblem(keyPath, "unknown variable %s", out.Variable).Hint = strictyaml.SuggestName(out.Variable, names)

		return nil
	}

	l.checkPath(keyPath, out)

	if out.Variable == varResources {
		l.addReads(cel.FollowDig(nil, out.Rest))
	}

	return &out
}

// eventFields returns the fields that events have by default. A Sentinel's message_data may define others.
func eventFields() []string {
	var out []string

	for field := range reflect.TypeFor[events.Data]().Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		out = append(out, name)
	}

	return out
}

// suggestBare returns a hint if the first part of a path is not a known name, but is similar to one. Otherwise
// it returns an empty string.
func (l *loader) suggestBare(name string) string {
	if slices.Contains(eventFields(), name) {
		return ""
	}

	return strictyaml.SuggestName(name, append(slices.Collect(maps.Keys(l.available)), eventFields()...))
}

// checkPath checks the fields after the variable, as far as they are known.
func (l *loader) checkPath(keyPath strictyaml.Path, path Path) {
	field, _, _ := strings.Cut(path.Rest, ".")

	if message, hint := l.checkVariable(variableRef{variable: path.Variable, field: field}); message != "" {
		l.addProblem(keyPath, "%s", message).Hint = hint

		if path.Variable == varEnv && hint == "" {
			l.problems[len(l.problems)-1].Hint = "add the variable to environment in the deployment configuration"
		}

		return
	}

	if path.Variable == varEvent && field != "" && !slices.Contains(eventFields(), field) {
		if hint := strictyaml.SuggestName(field, eventFields()); hint != "" {
			l.warnf(keyPath, hint, "events have event.%s only if message_data of their Sentinel defines it", field)
		}
	}

	if path.Variable == varConfig && l.deployment != nil && !hasField(reflect.TypeFor[adapter.Deployment](), path.Rest) {
		l.addProblem(keyPath, "the deployment configuration has no %s", path.Rest)
	}
}

// listConfigFields returns the top-level keys of the deployment configuration.
func listConfigFields() []string {
	var out []string
	for field := range reflect.TypeFor[adapter.Deployment]().Fields() {
		out = append(out, field.Tag.Get("yaml"))
	}

	return out
}

// hasField reports whether a struct has a YAML key. Dots separate the keys of nested structs.
func hasField(valueType reflect.Type, key string) bool {
	if valueType.Kind() == reflect.Pointer {
		valueType = valueType.Elem()
	}

	if key == "" || valueType.Kind() != reflect.Struct {
		return key == "" || valueType.Kind() == reflect.Map
	}

	name, rest, _ := strings.Cut(key, ".")

	for field := range valueType.Fields() {
		if field.Tag.Get("yaml") == name {
			return hasField(field.Type, rest)
		}
	}

	return false
}
