// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/kit/strictyaml"
)

// Migration is a file of upstream's adapter as ours reads it.
type Migration struct {
	// Text of the file now.
	Text []byte
	// Changes that were made, and what to know of the rest.
	Changes strictyaml.Problems
	// Left is what is still wrong, for a person to fix.
	Left strictyaml.Problems
}

// maxRewrites of one file: each takes one problem away.
const maxRewrites = 1000

// Migrate rewrites a task file or a deployment configuration, which is left as it is on
// disk. The error is of files that can't be read.
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
	if _, deployment := keys["clients"]; deployment || keys["adapter"] != nil {
		out.deployment(name, keys)

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

		out.Left = problems
		if loaded != nil {
			out.Changes = append(out.Changes, loaded.Warnings...)
		}

		break
	}

	out.differs(name)

	return out, nil
}

var (
	unknownName = regexp.MustCompile(`^unknown variable or function ([A-Za-z_]\w*)`)
	otherFolder = regexp.MustCompile(`here write ref: (.+)$`)
	ofCapture   = regexp.MustCompile(`^preconditions\[\d+\]\.capture\[\d+\]`)
)

// rewrite takes a problem away by a change of the text; false if it is none of those that it
// knows.
func (m *Migration) rewrite(problem strictyaml.Problem) bool {
	if found := otherFolder.FindStringSubmatch(problem.Hint); found != nil {
		at := regexp.MustCompile(`/\S*/` + regexp.QuoteMeta(found[1]) + `\b`)

		return m.replace(problem, at, found[1], "the manifest is in the folder of the task file")
	}

	found := unknownName.FindStringSubmatch(problem.Message)
	if found == nil || !ofCapture.MatchString(problem.Path) {
		return false
	}

	at := regexp.MustCompile(`(^|[^\w.])` + found[1] + `\b`)

	return m.replace(problem, at, "${1}response."+found[1], "a capture reads the answer as response")
}

// replace replaces the first match from the problem's place on.
func (m *Migration) replace(problem strictyaml.Problem, what *regexp.Regexp, by, why string) bool {
	lines := bytes.SplitAfterN(m.Text, []byte("\n"), max(problem.Line, 1))
	// What stands before the place tells whether a word begins there.
	from := min(len(m.Text)-len(lines[len(lines)-1])+max(problem.Column-2, 0), len(m.Text))

	match := what.FindSubmatchIndex(m.Text[from:])
	if match == nil {
		return false
	}

	rest := m.Text[from:]
	found, now := rest[match[0]:match[1]], what.Expand(nil, []byte(by), rest, match)

	m.Changes = append(m.Changes, strictyaml.Problem{
		File: problem.File, Line: 1 + bytes.Count(m.Text[:from+match[1]], []byte("\n")), Path: problem.Path, Hint: why,
		Message: strings.TrimSpace(string(found)) + " -> " + strings.TrimSpace(string(now)),
	})
	m.Text = slices.Concat(m.Text[:from], rest[:match[0]], now, rest[match[1]:])

	return true
}

// differs says what works in another way.
func (m *Migration) differs(name string) {
	if bytes.Contains(m.Text, []byte("resourcesSkipped")) && regexp.MustCompile(`(?m)^\s*create:`).Match(m.Text) {
		m.Changes = append(m.Changes, strictyaml.Problem{
			File:    name,
			Message: "adapter.resourcesSkipped is about preconditions alone here: a lifecycle.create.when that is false does not set it",
			Hint:    "ask resources.?NAME.hasValue() in its place",
		})
	}
}

// deployment adds the key of the HMAC, which upstream's configurations don't have.
func (m *Migration) deployment(name string, keys map[string]any) {
	const keyFile = "/etc/hyperfleet/identity-key"

	if keys["identity_key_file"] == nil {
		m.Text = append(bytes.TrimRight(m.Text, "\n"), []byte("\nidentity_key_file: "+keyFile+"\n")...)
		m.Changes = append(m.Changes, strictyaml.Problem{
			File: name, Path: "identity_key_file", Message: "added: objects bear an HMAC that proves whose they are",
			Hint: "openssl rand -base64 48 makes one; all adapters and sweep have the same",
		})
	}

	spec := Deployment(true)
	copied := spec.Default

	err := strictyaml.Decode(name, m.Text, &copied)
	if err == nil {
		err = spec.Validate(&copied)
	}

	if err != nil && !errors.As(err, &m.Left) {
		m.Left = strictyaml.Problems{{File: filepath.Base(name), Message: err.Error()}}
	}
}
