// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"path/filepath"
	"slices"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// payload compiles one. Its name is known to actions.
func (l *loader) payload(i int) {
	in, at := &l.task.Spec.Post.Payloads[i], strictyaml.Path{"post", "payloads", i}
	out := Payload{Name: in.Name, When: l.gate(at.With("when"), in.When)}

	switch {
	case (in.Build != nil) == (in.BuildRef != ""):
		l.problem(at, "want exactly one of build and build_ref")
	case in.Build != nil:
		out.Build = l.tree(at.With("build"), in.Build, true)
	default:
		out.Build = l.buildRef(at.With("build_ref"), in.BuildRef)
	}

	l.task.Payloads = append(l.task.Payloads, out)
}

func (l *loader) buildRef(at strictyaml.Path, name string) (out *Tree) {
	data, err := l.read(name)
	if err != nil {
		l.problem(at, "%v", err)

		return nil
	}

	doc, build, err := object(filepath.Join(l.folder, name), data)
	if err != nil {
		l.problems = append(l.problems, problemsOf(err)...)

		return nil
	}

	l.within(doc, func() { out = l.tree(nil, build, true) })

	return out
}

// action compiles one; its templates see payloads.
func (l *loader) action(i int) {
	in, at := &l.task.Spec.Post.PostActions[i], strictyaml.Path{"post", "post_actions", i}
	out := PostAction{Name: in.Name, When: l.gate(at.With("when"), in.When)}

	if in.Name == "" {
		l.problem(at.With("name"), "an action needs a name")
	}

	for j := range i {
		if l.task.Spec.Post.PostActions[j].Name == in.Name && in.Name != "" {
			l.problem(at.With("name"), "the name %s is there twice", in.Name)
		}
	}

	if in.APICall == nil && in.Log == nil {
		l.problem(at, "want an api_call, a log, or both")
	}

	for _, payload := range l.task.Payloads {
		l.known[payload.Name] = true
	}

	l.used = nil

	if in.APICall != nil {
		out.APICall = l.apiCall(at.With("api_call"), in.APICall)
	}

	out.Log = l.log(at.With("log"), in.Log)

	for _, payload := range l.task.Payloads {
		delete(l.known, payload.Name)

		if slices.Contains(l.used, payload.Name) {
			out.Payloads = append(out.Payloads, payload.Name)
		}
	}

	l.task.Actions = append(l.task.Actions, out)
}
