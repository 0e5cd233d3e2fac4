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

// Secret is a credential to search for.
type Secret struct {
	// Name is the name of the credential in findings.
	Name string
	// Value is the credential. The Scanner ignores values of fewer than 12 bytes.
	Value string
	// Places are the places where the credential is allowed, by their names in calls of Scan. A long-lived
	// credential has none.
	Places []string
}

// Finding is a credential in a place where it is not allowed.
type Finding struct {
	// Secret is the name of the credential, and Form the name of its encoding.
	Secret, Form string
	// Place and Detail are the place, as in the call of Scan.
	Place, Detail string
}

// String describes the finding without the credential.
func (f Finding) String() string {
	return fmt.Sprintf("%s is in %s (%s), %s", f.Secret, f.Place, f.Detail, f.Form)
}

// Scanner searches for credentials. The zero value has none. A Scanner is safe for concurrent use.
type Scanner struct {
	mu         sync.Mutex
	secrets    []knownSecret
	known      map[string]bool
	findings   map[Finding]bool
	scanCounts map[string]int
}

type knownSecret struct {
	secret Secret
	forms  map[string][]byte
}

// Register adds credentials. It does not scan earlier data again.
func (s *Scanner) Register(secrets ...Secret) {
	s.mu.Lock()
	defer s.mu.Unlock()

	for _, secret := range secrets {
		if len(secret.Value) < minFormLength || s.known[secret.Value] {
			continue
		}

		if s.known == nil {
			s.known = map[string]bool{}
		}

		s.known[secret.Value] = true
		entry := knownSecret{secret: secret, forms: map[string][]byte{}}

		for name, form := range forms(secret.Value) {
			entry.forms[name] = []byte(form)
		}

		s.secrets = append(s.secrets, entry)
	}
}

// Scan searches the data of a place. The detail is only for findings.
func (s *Scanner) Scan(place, detail string, data []byte) {
	s.mu.Lock()
	known := slices.Clone(s.secrets)

	if s.scanCounts == nil {
		s.scanCounts = map[string]int{}
	}

	s.scanCounts[place]++
	s.mu.Unlock()

	for _, finding := range scan(known, place, detail, data, maxDepth) {
		s.addFinding(finding)
	}
}

func scan(known []knownSecret, place, detail string, data []byte, depth int) []Finding {
	var out []Finding

	for _, entry := range known {
		if slices.Contains(entry.secret.Places, place) {
			continue
		}

		for name, form := range entry.forms {
			if bytes.Contains(data, form) {
				out = append(out, Finding{Secret: entry.secret.Name, Form: shortenName(name), Place: place, Detail: detail})
			}
		}
	}

	if depth == 0 {
		return out
	}

	for _, part := range inflateParts(data) {
		out = append(out, scan(known, place, detail+", inflated", part, depth-1)...)
	}

	return out
}

// shortenName removes the part of the credential from the name of a form. That part only makes the name
// unique.
func shortenName(name string) string {
	for _, plain := range []string{
		"base64 in base64", "base64url", "base64 of a line of PEM", "base64", "a line of PEM",
	} {
		if len(name) > len(plain) && name[:len(plain)+1] == plain+" " {
			return plain
		}
	}

	return name
}

func (s *Scanner) addFinding(finding Finding) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.findings == nil {
		s.findings = map[Finding]bool{}
	}

	s.findings[finding] = true
}

// ScanTree scans a directory tree: the contents of files, all names, and the targets of links. It ignores
// files that are deleted in the meantime, and does not follow links.
func (s *Scanner) ScanTree(place, root string) {
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return nil //nolint:nilerr // the file was deleted
		}

		below, _ := filepath.Rel(root, path)
		s.Scan(place, "the name of "+below, []byte(below))

		switch {
		case entry.Type()&fs.ModeSymlink != 0:
			if target, err := os.Readlink(path); err == nil {
				s.Scan(place, below, []byte(target))
			}
		case entry.Type().IsRegular():
			if data, err := os.ReadFile(path); err == nil { // #nosec G304,G122 -- the test's own folder
				s.Scan(place, below, data)
			}
		}

		return nil
	})
}

// Findings returns all findings, sorted.
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

// ScanCounts returns the number of scans of each place, so that a test can check that it has scanned all
// places.
func (s *Scanner) ScanCounts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()

	return maps.Clone(s.scanCounts)
}
