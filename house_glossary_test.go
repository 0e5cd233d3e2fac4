// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hyperfleet_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/test/spelling"
)

const maxTerms = 40

// TestGlossary checks that pages and code use the field's words, and that the glossary is short.
func TestGlossary(t *testing.T) {
	t.Parallel()

	const glossary = "docs/reference/glossary.md"

	terms, checked, checkWords := 0, 0, spelling.NewWordCheck()

	walk(t, func(name string) {
		isGo := strings.HasSuffix(name, ".go") && !strings.HasPrefix(filepath.Base(name), "zz_")
		if !isGo && !isProse(filepath.ToSlash(name)) {
			return
		}

		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}

		if isGo {
			spelling.CheckNames(t, name, text)
		}

		if !isProse(filepath.ToSlash(name)) {
			checkWords(t, name, keepComments(text))

			return
		}

		checked++

		checkWords(t, name, text)

		if filepath.ToSlash(name) == glossary {
			terms = strings.Count(string(text), "\n| ") - strings.Count(string(text), "\n| Term ")
		}
	})

	if checked == 0 {
		t.Fatal("no pages and no code were found")
	}

	if terms == 0 || terms > maxTerms {
		t.Errorf("%s has %d terms, want 1 to %d", glossary, terms, maxTerms)
	}
}

// keepComments returns the text of a Go file with empty lines in place of its code. The data of a test may contain any words.
func keepComments(text []byte) []byte {
	lines := bytes.Split(text, []byte("\n"))
	for i, line := range lines {
		if !bytes.HasPrefix(bytes.TrimSpace(line), []byte("//")) {
			lines[i] = nil
		}
	}

	return bytes.Join(lines, []byte("\n"))
}

// isProse reports whether a file is a page, or Go code that is neither a test nor generated. The changelog and
// decisions quote earlier releases.
func isProse(name string) bool {
	for _, folder := range []string{"/testdata/", "/test/", "/adr/", "/node_modules/"} {
		if strings.Contains("/"+name, folder) {
			return false
		}
	}

	isCode := strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") && !strings.HasPrefix(filepath.Base(name), "zz_")

	return isCode || strings.HasSuffix(name, ".md") && name != "CHANGELOG.md"
}
