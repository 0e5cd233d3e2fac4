// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Migration is a file of upstream's adapter, the adapter of the upstream HyperFleet project, that was
// rewritten for this adapter.
type Migration struct {
	// Text is the rewritten content of the file.
	Text []byte
	// Changes are the changes that Migrate made, and warnings about the rest of the file.
	Changes strictyaml.Problems
	// Remaining are the problems that a person has to fix.
	Remaining strictyaml.Problems
}

// maxRewrites limits the rewrites of one file. Each rewrite removes one problem.
const maxRewrites = 1000

// Migrate rewrites a task file or a deployment configuration of upstream's adapter. It returns the
// new text and does not change the file. It returns an error if the file can't be read or parsed.
func Migrate(name string) (*Migration, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("read file: %w", err)
	}

	var keys map[string]any
	if err := strictyaml.Decode(name, text, &keys); err != nil {
		return nil, err
	}

	out := &Migration{Text: text}
	if _, hasClients := keys["clients"]; hasClients || keys["adapter"] != nil {
		out.migrateDeployment(name, keys)

		return out, nil
	}

	for range maxRewrites {
		loaded, err := LoadFile(name, nil, func(l *loader) { l.text = out.Text })

		var problems strictyaml.Problems
		if err != nil && !errors.As(err, &problems) {
			return nil, err
		}

		if slices.ContainsFunc(problems, out.rewrite) {
			continue
		}

		out.Remaining = problems
		if loaded != nil {
			out.Changes = append(out.Changes, loaded.Warnings...)
		}

		break
	}

	out.noteDifferences(name)

	return out, nil
}

var (
	unknownNamePattern = regexp.MustCompile(`^unknown variable or function ([A-Za-z_]\w*)`)
	otherFolderPattern = regexp.MustCompile(`here write ref: (.+)$`)
	capturePathPattern = regexp.MustCompile(`^preconditions\[\d+\]\.capture\[\d+\]`)
)

// rewrite changes the text so that it no longer has the problem. It returns false if it can't fix
// the problem.
func (m *Migration) rewrite(problem strictyaml.Problem) bool {
	if found := otherFolderPattern.FindStringSubmatch(problem.Hint); found != nil {
		pattern := regexp.MustCompile(`/\S*/` + regexp.QuoteMeta(found[1]) + `\b`)

		return m.replace(problem, pattern, found[1], "the manifest is in the folder of the task file")
	}

	found := unknownNamePattern.FindStringSubmatch(problem.Message)
	if found == nil || !capturePathPattern.MatchString(problem.Path) {
		return false
	}

	pattern := regexp.MustCompile(`(^|[^\w.])` + found[1] + `\b`)

	return m.replace(problem, pattern, "${1}response."+found[1], "a capture reads the response as the variable response")
}

// replace replaces the first match of a pattern at or after the position of the problem, and
// records the change. It returns false if nothing matches.
func (m *Migration) replace(problem strictyaml.Problem, pattern *regexp.Regexp, template, reason string) bool {
	lines := bytes.SplitAfterN(m.Text, []byte("\n"), max(problem.Line, 1))
	// The pattern needs the character before the position to find the start of a word.
	from := min(len(m.Text)-len(lines[len(lines)-1])+max(problem.Column-2, 0), len(m.Text))

	match := pattern.FindSubmatchIndex(m.Text[from:])
	if match == nil {
		return false
	}

	rest := m.Text[from:]
	found, replacement := rest[match[0]:match[1]], pattern.Expand(nil, []byte(template), rest, match)

	m.Changes = append(m.Changes, strictyaml.Problem{
		File: problem.File, Line: 1 + bytes.Count(m.Text[:from+match[1]], []byte("\n")), Path: problem.Path, Hint: reason,
		Message: strings.TrimSpace(string(found)) + " -> " + strings.TrimSpace(string(replacement)),
	})
	m.Text = slices.Concat(m.Text[:from], rest[:match[0]], replacement, rest[match[1]:])

	return true
}

// noteDifferences records behavior that differs from upstream's adapter.
func (m *Migration) noteDifferences(name string) {
	if bytes.Contains(m.Text, []byte("resourcesSkipped")) && regexp.MustCompile(`(?m)^\s*create:`).Match(m.Text) {
		m.Changes = append(m.Changes, strictyaml.Problem{
			File:    name,
			Message: "adapter.resourcesSkipped covers only preconditions: a false lifecycle.create.when does not set it",
			Hint:    "use resources.?NAME.hasValue() instead",
		})
	}
}

// migrateDeployment adds the path of the HMAC key, which upstream's configurations don't have.
func (m *Migration) migrateDeployment(name string, keys map[string]any) {
	const keyFile = "/etc/hyperfleet/identity-key"

	if keys["identity_key_file"] == nil {
		m.Text = append(bytes.TrimRight(m.Text, "\n"), []byte("\nidentity_key_file: "+keyFile+"\n")...)
		m.Changes = append(m.Changes, strictyaml.Problem{
			File: name, Path: "identity_key_file", Message: "added: objects have an annotation with an HMAC that proves ownership",
			Hint: "create the key with openssl rand -base64 48, and use the same key for all adapters and sweep",
		})
	}

	m.Remaining = NewDeploymentSpec(FileRequired).CheckText(name, m.Text)
}
