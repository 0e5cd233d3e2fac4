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
	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Variables that are always there, or in some expressions alone.
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

// What names are, in words.
const (
	whatParam        = "a param"
	whatPrecondition = "a precondition"
	whatCapture      = "a captured value"
	whatPayload      = "a payload"
)

func builtins() []string { return []string{varEvent, varConfig, varEnv, varAdapter} }

func reserved() []string {
	return append(builtins(), varResources, varResponse, varItem, varItems, varItemIndex, nowVariable, "true", "false", "null", "in")
}

var (
	variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	resourceName = regexp.MustCompile(`^[a-z][a-zA-Z0-9_]*$`)
)

// collect takes up all names of the file, and says which are wrong or there twice.
func (l *loader) collect() {
	spec := &l.task.Spec

	for i := range spec.Params {
		at, name := strictyaml.Path{"params", i, "name"}, spec.Params[i].Name

		// Files of other programs repeat params, and the last one counts there.
		if slices.ContainsFunc(spec.Params[i+1:], func(later adapter.Param) bool { return name != "" && later.Name == name }) {
			l.warnf(at, "take it out", "the param %s is there again below: that one counts", name)

			continue
		}

		l.declare(at, name, whatParam)
	}

	preconditions := map[string]bool{}

	for i := range spec.Preconditions {
		one, at := &spec.Preconditions[i], strictyaml.Path{"preconditions", i}
		l.oldForm(at, one)

		switch {
		case one.APICall != nil:
			l.declare(at.With("name"), one.Name, whatPrecondition)
		case one.Name == "":
			l.problem(at.With("name"), "a precondition needs a name")
		case preconditions[one.Name] || l.later[one.Name] == whatPrecondition:
			l.problem(at.With("name"), "the name %s is there twice", one.Name)
		}

		preconditions[one.Name] = true

		for j := range one.Capture {
			l.declare(at.With("capture", j, "name"), one.Capture[j].Name, whatCapture)
		}
	}

	for i := range spec.Post.Payloads {
		l.declare(strictyaml.Path{"post", "payloads", i, "name"}, spec.Post.Payloads[i].Name, whatPayload)
	}

	for i := range spec.Resources {
		l.resourceNames(i)
	}
}

// declare takes up one name of the variables.
func (l *loader) declare(at strictyaml.Path, name, what string) {
	switch {
	case name == "":
		l.problem(at, "%s needs a name", what)
	case !variableName.MatchString(name):
		l.problem(at, "%q can't be a name: letters, digits and _, and no digit first", name)
	case slices.Contains(reserved(), name):
		l.problem(at, "the name %s is taken", name).Hint = "call it something else"
	case l.later[name] != "":
		l.problem(at, "the name %s is there twice: it is %s already", name, l.later[name])
	default:
		l.later[name] = what
	}
}

// resourceNames takes up the names of an entry and of what is nested in it.
func (l *loader) resourceNames(i int) {
	one, at := &l.task.Spec.Resources[i], strictyaml.Path{"resources", i}
	where := at.With("name")

	if one.Alias != "" {
		where = at.With("alias")

		if l.old(where, "alias", "name", one.Name != "") {
			one.Name = one.Alias
		}
	}

	l.declareResource(where, one.Name)

	for j := range one.NestedDiscoveries {
		l.declareResource(at.With("nested_discoveries", j, "name"), one.NestedDiscoveries[j].Name)
	}
}

func (l *loader) declareResource(at strictyaml.Path, name string) {
	switch {
	case name == "":
		l.problem(at, "a resource needs a name")
	case !resourceName.MatchString(name):
		l.problem(at, "%q can't be a resource's name: letters, digits and _, beginning with a small letter", name)
	case slices.Contains(l.resources, name):
		l.problem(at, "the name %s is there twice among resources and nested discoveries", name)
	default:
		l.resources = append(l.resources, name)
	}
}

// path checks a path to a value. Where bare is set, a path that begins with no name that
// is known is one into the event.
func (l *loader) path(at strictyaml.Path, text string, bare bool) *Path {
	out := parsePath(text)

	switch {
	case text == "" || strings.HasPrefix(text, ".") || strings.HasSuffix(text, ".") || strings.Contains(text, ".."):
		l.problem(at, "%q is not a path", text).Hint = "write event.id, env.NAME, config.adapter.name or PARAM.field"

		return nil
	case l.known[out.Variable]:
	case l.later[out.Variable] != "" || out.Variable == varResources:
		l.notYet(at, out.Variable)

		return nil
	case bare:
		out = Path{Variable: varEvent, Rest: text}
	default:
		l.problem(at, "unknown variable %s", out.Variable).Hint = strictyaml.Nearest(out.Variable, slices.Collect(maps.Keys(l.known)))

		return nil
	}

	l.checkPath(at, out)

	return &out
}

// checkPath checks what follows the variable, as far as it is known.
func (l *loader) checkPath(at strictyaml.Path, path Path) {
	field, _, _ := strings.Cut(path.Rest, ".")

	if message, hint := l.checkUse(use{variable: path.Variable, field: field}); message != "" {
		l.problem(at, "%s", message).Hint = hint

		if path.Variable == varEnv && hint == "" {
			l.problems[len(l.problems)-1].Hint = "list it under environment of the deployment configuration"
		}

		return
	}

	if path.Variable == varConfig && l.deployment != nil && !hasField(reflect.TypeFor[adapter.Deployment](), path.Rest) {
		l.problem(at, "the deployment configuration has no %s", path.Rest)
	}
}

// configFields are the keys of the deployment configuration.
func configFields() []string {
	var out []string
	for field := range reflect.TypeFor[adapter.Deployment]().Fields() {
		out = append(out, field.Tag.Get("yaml"))
	}

	return out
}

// hasField says whether a struct has a key, with dots for keys of keys.
func hasField(kind reflect.Type, key string) bool {
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}

	if key == "" || kind.Kind() != reflect.Struct {
		return key == "" || kind.Kind() == reflect.Map
	}

	name, rest, _ := strings.Cut(key, ".")

	for field := range kind.Fields() {
		if field.Tag.Get("yaml") == name {
			return hasField(field.Type, rest)
		}
	}

	return false
}
