// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package migrate

import (
	"bytes"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
	"github.com/hyperfleet/hyperfleet/platform/adapter/task"
)

// maxRewrites limits the rewrites of one task file. Each rewrite removes one problem.
const maxRewrites = 1000

// convertTaskFile rewrites the places of a task file that the adapter refuses, until a person must fix the rest.
func convertTaskFile(name string, text []byte) (*Result, error) {
	out := &Result{Kind: kindAdapter, Text: text}

	for range maxRewrites {
		loaded, err := task.LoadFile(name, nil, task.WithText(out.Text))

		var problems strictyaml.Problems
		if err != nil && !errors.As(err, &problems) {
			return nil, err
		}

		if slices.ContainsFunc(problems, out.rewrite) {
			continue
		}

		out.Left = problems
		if loaded != nil {
			out.Notes = append(out.Notes, loaded.Warnings...)
		}

		break
	}

	if bytes.Contains(out.Text, []byte("resourcesSkipped")) && createPattern.Match(out.Text) {
		out.Notes = append(out.Notes, strictyaml.Problem{
			File:    name,
			Message: "adapter.resourcesSkipped covers only preconditions: a false lifecycle.create.when does not set it",
			Hint:    "use resources.?NAME.hasValue() instead",
		})
	}

	return out, nil
}

var (
	unknownNamePattern = regexp.MustCompile(`^unknown variable or function ([A-Za-z_]\w*)`)
	otherFolderPattern = regexp.MustCompile(`here write ref: (.+)$`)
	capturePathPattern = regexp.MustCompile(`^preconditions\[\d+\]\.capture\[\d+\]`)
	createPattern      = regexp.MustCompile(`(?m)^\s*create:`)
)

// rewrite changes the text so that it no longer has the problem. It returns false if it can't fix the problem.
func (r *Result) rewrite(problem strictyaml.Problem) bool {
	if found := otherFolderPattern.FindStringSubmatch(problem.Hint); found != nil {
		pattern := regexp.MustCompile(`/\S*/` + regexp.QuoteMeta(found[1]) + `\b`)

		return r.replace(problem, pattern, found[1], "the manifest is in the folder of the task file")
	}

	found := unknownNamePattern.FindStringSubmatch(problem.Message)
	if found == nil || !capturePathPattern.MatchString(problem.Path) {
		return false
	}

	pattern := regexp.MustCompile(`(^|[^\w.])` + found[1] + `\b`)

	return r.replace(problem, pattern, "${1}response."+found[1], "a capture reads the response as the variable response")
}

// replace replaces the first match of a pattern at or after the position of the problem, and notes the change. It
// returns false if nothing matches.
func (r *Result) replace(problem strictyaml.Problem, pattern *regexp.Regexp, template, reason string) bool {
	lines := bytes.SplitAfterN(r.Text, []byte("\n"), max(problem.Line, 1))
	// The pattern needs the character before the position to find the start of a word.
	from := min(len(r.Text)-len(lines[len(lines)-1])+max(problem.Column-2, 0), len(r.Text))

	match := pattern.FindSubmatchIndex(r.Text[from:])
	if match == nil {
		return false
	}

	rest := r.Text[from:]
	found, replacement := rest[match[0]:match[1]], pattern.Expand(nil, []byte(template), rest, match)

	r.Notes = append(r.Notes, strictyaml.Problem{
		File: problem.File, Line: 1 + bytes.Count(r.Text[:from+match[1]], []byte("\n")), Path: problem.Path, Hint: reason,
		Message: strings.TrimSpace(string(found)) + " -> " + strings.TrimSpace(string(replacement)),
	})
	r.Text = slices.Concat(r.Text[:from], rest[:match[0]], replacement, rest[match[1]:])

	return true
}

// convertDeployment adds the path of the HMAC key, which upstream's configurations of adapters don't have.
func convertDeployment(name string, text []byte, keys map[string]any) *Result {
	const keyFile = "/etc/hyperfleet/identity-key"

	out := &Result{Kind: kindAdapter, Text: text}

	if keys["identity_key_file"] == nil {
		out.Text = append(bytes.TrimRight(text, "\n"), "\nidentity_key_file: "+keyFile+"\n"...)
		out.Notes = strictyaml.Problems{{
			File: name, Path: "identity_key_file", Message: "added: objects have an annotation with an HMAC that proves ownership",
			Hint: "create the key with openssl rand -base64 48, and use the same key for all adapters and sweep",
		}}
	}

	out.Left = task.NewDeploymentSpec(task.FileRequired).CheckText(name, out.Text)

	return out
}
