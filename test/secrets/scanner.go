// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package secrets

import (
	"bytes"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Secret is one credential.
type Secret struct {
	// Name says what it is, in findings.
	Name string
	// Value is the credential; one of fewer than 12 bytes is not looked for.
	Value string
	// Places are where it may be seen, by the names that Look is called with. A long-lived
	// credential has none.
	Places []string
}

// Finding is a credential where it may not be.
type Finding struct {
	// Secret is the credential's name, Form how it was written.
	Secret, Form string
	// Place and Detail are where it was.
	Place, Detail string
}

// String says what was found where; it does not hold the credential.
func (f Finding) String() string {
	return fmt.Sprintf("%s is in %s (%s), %s", f.Secret, f.Place, f.Detail, f.Form)
}

// Scanner looks for credentials. The zero value knows of none. It may be used by many at
// the same time.
type Scanner struct {
	mu       sync.Mutex
	planted  []planted
	known    map[string]bool
	findings map[Finding]bool
	looks    map[string]int
}

type planted struct {
	secret Secret
	forms  map[string][]byte
}

// Plant makes a credential known; what was looked at before is not looked at again.
func (s *Scanner) Plant(secrets ...Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, secret := range secrets {
		if len(secret.Value) < shortest || s.known[secret.Value] {
			continue
		}

		if s.known == nil {
			s.known = map[string]bool{}
		}

		s.known[secret.Value] = true
		entry := planted{secret: secret, forms: map[string][]byte{}}

		for name, form := range forms(secret.Value) {
			entry.forms[name] = []byte(form)
		}

		s.planted = append(s.planted, entry)
	}
}

// Look looks at data that is at a place; the detail is for findings.
func (s *Scanner) Look(place, detail string, data []byte) {
	s.mu.Lock()
	known := slices.Clone(s.planted)

	if s.looks == nil {
		s.looks = map[string]int{}
	}

	s.looks[place]++
	s.mu.Unlock()

	for _, finding := range look(known, place, detail, data, deepest) {
		s.found(finding)
	}
}

func look(known []planted, place, detail string, data []byte, depth int) []Finding {
	var out []Finding

	for _, entry := range known {
		if slices.Contains(entry.secret.Places, place) {
			continue
		}

		for name, form := range entry.forms {
			if bytes.Contains(data, form) {
				out = append(out, Finding{Secret: entry.secret.Name, Form: shorten(name), Place: place, Detail: detail})
			}
		}
	}

	if depth == 0 {
		return out
	}

	for _, part := range inflated(data) {
		out = append(out, look(known, place, detail+", inflated", part, depth-1)...)
	}

	return out
}

// shorten leaves the name of a form without the part of the credential that makes it one of
// its own.
func shorten(name string) string {
	for _, plain := range []string{
		"base64 in base64", "base64url", "base64 of a line of PEM", "base64", "a line of PEM",
	} {
		if len(name) > len(plain) && name[:len(plain)+1] == plain+" " {
			return plain
		}
	}

	return name
}

func (s *Scanner) found(finding Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.findings == nil {
		s.findings = map[Finding]bool{}
	}

	s.findings[finding] = true
}

// Tree looks at a folder: its files and what they hold, names, and targets of links. What
// goes away meanwhile is passed over. Links are not followed.
func (s *Scanner) Tree(place, root string) {
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // it went away
		}

		below, _ := filepath.Rel(root, path)
		s.Look(place, "the name of "+below, []byte(below))

		switch {
		case entry.Type()&fs.ModeSymlink != 0:
			if target, err := os.Readlink(path); err == nil {
				s.Look(place, below, []byte(target))
			}
		case entry.Type().IsRegular():
			if data, err := os.ReadFile(path); err == nil { // #nosec G304,G122 -- the test's own folder
				s.Look(place, below, data)
			}
		}

		return nil
	})
}

// Findings are what was found, sorted.
func (s *Scanner) Findings() []Finding {
	s.mu.Lock()
	defer s.mu.Unlock()

	out := make([]Finding, 0, len(s.findings))
	for finding := range s.findings {
		out = append(out, finding)
	}

	slices.SortFunc(out, func(a, b Finding) int { return strings.Compare(a.String(), b.String()) })

	return out
}

// Looks is how often each place was looked at: what was never looked at shows nothing.
func (s *Scanner) Looks() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.looks)
}
