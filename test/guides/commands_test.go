// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
)

var (
	fence  = regexp.MustCompile("^ *```([a-z]*)")
	marker = regexp.MustCompile(`^ *<!-- (run|not run): (.+) -->$`)
	runBy  = regexp.MustCompile(`^(Test\w+)(?: in ([\w/.-]+))?$`)
)

// testFiles has the sources of all tests of each folder.
type testFiles map[string]string

// readTests reads the sources of all tests.
func readTests(t *testing.T) testFiles {
	t.Helper()

	out := testFiles{}

	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		name, _ := filepath.Rel("../..", path)
		if entry.IsDir() && (name == "bin" || name == "dist" || strings.HasPrefix(entry.Name(), ".") && name != ".") {
			return filepath.SkipDir
		}

		if strings.HasSuffix(path, "_test.go") {
			source, err := os.ReadFile(path)
			if err != nil {
				return err
			}

			out[filepath.ToSlash(filepath.Dir(name))] += string(source)
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// findTest returns the folders that have a test with this name.
func (f testFiles) findTest(test string) []string {
	var out []string

	for folder, source := range f {
		if begins := "func " + test + "("; strings.HasPrefix(source, begins) || strings.Contains(source, "\n"+begins) {
			out = append(out, folder)
		}
	}

	slices.Sort(out)

	return out
}

// checkMarker returns what is wrong with the marker above a page's commands, or "".
func (f testFiles) checkMarker(page, kind, value string) string {
	if kind == "not run" {
		return ""
	}

	named := runBy.FindStringSubmatch(value)
	if named == nil {
		return fmt.Sprintf("%q is not TestName, nor TestName in FOLDER", value)
	}

	folders := f.findTest(named[1])

	switch {
	case named[2] == "" && len(folders) == 1:
		named[2] = folders[0]
	case named[2] == "" && len(folders) > 1:
		return fmt.Sprintf("%s is in %s: write %s in FOLDER", named[1], strings.Join(folders, " and "), named[1])
	case !slices.Contains(folders, named[2]):
		return "there is no test " + value
	}

	// A test that runs a page contains the name of the page.
	if read := strings.TrimSuffix(strings.TrimPrefix(page, "docs/"), ".md"); !strings.Contains(f[named[2]], read) {
		return fmt.Sprintf("no test in %s reads the page: nothing there names %q", named[2], read)
	}

	return ""
}

// checkPage returns the problems with the markers of a page. Each block of shell commands must have a marker above
// it.
func (f testFiles) checkPage(page, source string) []string {
	var (
		out    []string
		within bool
		above  string
	)

	for i, line := range strings.Split(source, "\n") {
		opened, comment := fence.FindStringSubmatch(line), marker.FindStringSubmatch(above)
		begins := opened != nil && !within
		shell := begins && slices.Contains([]string{"sh", "bash", "shell", "console"}, opened[1])
		at := fmt.Sprintf("%s:%d: ", page, i+1)

		switch {
		case shell && comment == nil:
			out = append(out, at+"commands without <!-- run: TestName --> or <!-- not run: reason --> on the line above")
		case shell:
			if why := f.checkMarker(page, comment[1], comment[2]); why != "" {
				out = append(out, at+why)
			}
		case comment != nil && !within:
			out = append(out, at+"the marker above has no block of commands below it")
		case begins && opened[1] == "":
			out = append(out, at+"a block that does not say what it is: sh, yaml, text")
		}

		if opened != nil {
			within = !within
		}

		above = line
	}

	return out
}

// findIndented returns the indented code blocks of a page, which have neither a language nor a marker.
func findIndented(page, source string) []string {
	var out []string

	document := goldmark.DefaultParser().Parse(text.NewReader([]byte(source)))
	err := ast.Walk(document, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if entering && node.Kind() == ast.KindCodeBlock && node.Lines().Len() > 0 {
			line := 1 + strings.Count(source[:node.Lines().At(0).Start], "\n")
			out = append(out, fmt.Sprintf("%s:%d: an indented block: put it into a fence that says what it is: sh, yaml, text", page, line))
		}

		return ast.WalkContinue, nil
	})
	if err != nil {
		out = append(out, fmt.Sprintf("%s: %v", page, err))
	}

	return out
}

// TestCommandsAreRun checks that each block of commands in the documentation names the test that runs it, or the
// reason why no test does.
func TestCommandsAreRun(t *testing.T) {
	t.Parallel()

	tests := readTests(t)
	pages := []string{"README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "SECURITY.md", "CHANGELOG.md"}

	err := filepath.WalkDir("../../docs", func(path string, _ fs.DirEntry, err error) error {
		if name, _ := filepath.Rel("../..", path); strings.HasSuffix(path, ".md") {
			pages = append(pages, filepath.ToSlash(name))
		}

		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	run, blocks := 0, 0

	for _, page := range pages {
		source := readFile(t, "../../"+page)
		for _, problem := range append(tests.checkPage(page, source), findIndented(page, source)...) {
			t.Error(problem)
		}

		for line := range strings.Lines(source) {
			if comment := marker.FindStringSubmatch(strings.TrimSuffix(line, "\n")); comment != nil {
				blocks++

				if comment[1] == "run" {
					run++
				}
			}
		}
	}

	t.Logf("%d of %d blocks of commands are run by tests", run, blocks)

	if run < 20 {
		t.Errorf("tests run only %d blocks of commands: the search is broken", run)
	}
}

// TestMarkers checks which markers are rejected.
func TestMarkers(t *testing.T) {
	t.Parallel()

	tests := testFiles{
		"a": "// reads docs/start/x.md\nfunc TestOne(t *testing.T) {\nfunc TestBoth(t *testing.T) {\n",
		"b": "// reads docs/start/x.md\nfunc TestBoth(t *testing.T) {\n",
		"c": "func TestOther(t *testing.T) {\n",
	}

	for name, tc := range map[string]struct{ text, want string }{
		"run by a test":            {text: "<!-- run: TestOne -->\n```sh\nls\n```"},
		"indented":                 {text: "2. So:\n\n    <!-- run: TestOne -->\n    ```sh\n    ls\n    ```"},
		"test with folder":         {text: "<!-- run: TestBoth in b -->\n```sh\nls\n```"},
		"not run":                  {text: "<!-- not run: it deletes everything -->\n```sh\nls\n```"},
		"YAML needs no marker":     {text: "```yaml\na: b\n```"},
		"a marker inside a block":  {text: "```text\n<!-- run: TestOne -->\n```"},
		"no marker":                {text: "```sh\nls\n```", want: "commands without"},
		"not on the line above":    {text: "<!-- run: TestOne -->\n\n```sh\nls\n```", want: "no block"},
		"the second of two blocks": {text: "<!-- run: TestOne -->\n```sh\nls\n```\n```bash\nls\n```", want: "commands without"},
		"no such test":             {text: "<!-- run: TestNone -->\n```sh\nls\n```", want: "no test TestNone"},
		"not in that folder":       {text: "<!-- run: TestOne in b -->\n```sh\nls\n```", want: "no test TestOne in b"},
		"test name in two folders": {text: "<!-- run: TestBoth -->\n```sh\nls\n```", want: "a and b"},
		"test of another page":     {text: "<!-- run: TestOther -->\n```sh\nls\n```", want: "reads the page"},
		"not a test name":          {text: "<!-- run: by hand -->\n```sh\nls\n```", want: "is not TestName"},
		"no language":              {text: "```\nls\n```", want: "does not say what it is"},
		"indented lines":           {text: "So:\n\n    ls\n", want: "x.md:3: an indented block"},
		"indented in a list":       {text: "1. So:\n\n       ls\n", want: "x.md:3: an indented block"},
		"a paragraph of a list":    {text: "1. So:\n\n   that is all\n"},
		"a marker without a block": {text: "<!-- run: TestOne -->\ntext", want: "no block"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := strings.Join(append(tests.checkPage("docs/start/x.md", tc.text), findIndented("docs/start/x.md", tc.text)...), "\n")
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("problems: %q, want %q", got, tc.want)
			}
		})
	}
}
