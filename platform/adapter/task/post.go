// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// mentionsFinalized reports whether a part of a task file contains the condition Finalized, as a value or in a template
// or expression.
func mentionsFinalized(part any) bool {
	text, err := json.Marshal(part)

	return err != nil || strings.Contains(string(text), "Finalized")
}

// compilePayload compiles a payload. Only actions can read its name.
func (l *loader) compilePayload(i int) {
	in, keyPath := &l.task.Spec.Post.Payloads[i], strictyaml.Path{"post", "payloads", i}
	out := Payload{Name: in.Name, When: l.compileGate(keyPath.Append("when"), in.When)}

	switch {
	case (in.Build != nil) == (in.BuildRef != ""):
		l.addProblem(keyPath, "want exactly one of build and build_ref")
	case in.Build != nil:
		out.Build = l.compileTree(keyPath.Append("build"), in.Build, withLeaves)
	default:
		out.Build = l.compileBuildRef(keyPath.Append("build_ref"), in.BuildRef)
	}

	l.task.Payloads = append(l.task.Payloads, out)
}

func (l *loader) compileBuildRef(keyPath strictyaml.Path, name string) (out *Tree) {
	data, err := l.readFile(name)
	if err != nil {
		l.addProblem(keyPath, "%v", err)

		return nil
	}

	doc, build, err := parseObject(filepath.Join(l.folder, name), data)
	if err != nil {
		l.problems = append(l.problems, toProblems(err)...)

		return nil
	}

	l.task.ReportsFinalized = l.task.ReportsFinalized || mentionsFinalized(build)
	l.withDocument(doc, func() { out = l.compileTree(nil, build, withLeaves) })

	return out
}

// compileAction compiles a post action, whose templates can read payloads.
func (l *loader) compileAction(i int) {
	in, keyPath := &l.task.Spec.Post.PostActions[i], strictyaml.Path{"post", "post_actions", i}
	out := PostAction{Name: in.Name, When: l.compileGate(keyPath.Append("when"), in.When)}

	if in.Name == "" {
		l.addProblem(keyPath.Append("name"), "an action needs a name")
	}

	for j := range i {
		if l.task.Spec.Post.PostActions[j].Name == in.Name && in.Name != "" {
			l.addProblem(keyPath.Append("name"), "the name %s is used twice", in.Name)
		}
	}

	if in.APICall == nil && in.Log == nil {
		l.addProblem(keyPath, "want an api_call, a log, or both")
	}

	for _, payload := range l.task.Payloads {
		l.available[payload.Name] = true
	}

	l.usedVariables = nil

	if in.APICall != nil {
		out.APICall = l.compileAPICall(keyPath.Append("api_call"), in.APICall)
	}

	out.Log = l.compileLog(keyPath.Append("log"), in.Log)

	for _, payload := range l.task.Payloads {
		delete(l.available, payload.Name)

		if slices.Contains(l.usedVariables, payload.Name) {
			out.Payloads = append(out.Payloads, payload.Name)
		}
	}

	l.task.Actions = append(l.task.Actions, out)
}
