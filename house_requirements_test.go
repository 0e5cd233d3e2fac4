// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hyperfleet_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const (
	requirementsPage   = "docs/reference/requirements.md"
	requirementsFolder = "docs/reference/requirements"
	requirementsHeader = "| id | section | requirement | verdict | tests, or what differs |"
)

// requirement is one row of the table of a document.
type requirement struct {
	id, section, text, verdict, proof string
}

// pageLink matches a link to a file of the repository: its text, its path, and the name after "#".
var pageLink = regexp.MustCompile(`\[([^\]]+)\]\(([^)#:]+)(?:#([^)]+))?\)`)

// TestRequirements checks the tables of the documents' requirements: the ids are complete and in order, each verdict
// has the links that it needs, each named test and page exists, and the overview has the right numbers.
func TestRequirements(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob(requirementsFolder + "/*.md")
	if err != nil || len(files) == 0 {
		t.Fatalf("no tables in %s: %v", requirementsFolder, err)
	}

	overview, err := os.ReadFile(requirementsPage)
	if err != nil {
		t.Fatal(err)
	}

	functions := map[string]map[string]bool{}

	for _, file := range files {
		document := strings.TrimSuffix(filepath.Base(file), ".md")
		counts := map[string]int{}

		for i, row := range readRequirements(t, file) {
			if want := fmt.Sprintf("%s-%03d", document, i+1); row.id != want {
				t.Fatalf("%s: the id %s is not %s", file, row.id, want)
			}

			counts[row.verdict]++

			for _, problem := range checkRequirement(t, file, row, functions) {
				t.Errorf("%s: %s: %s", file, row.id, problem)
			}
		}

		line := fmt.Sprintf("(requirements/%s.md) | %d | %d | %d |\n", document, counts["holds"], counts["differs"], counts["missing"])
		if !strings.Contains(string(overview), line) {
			t.Errorf("%s does not end a row with %q", requirementsPage, line)
		}
	}
}

// readRequirements returns the rows of all tables of a page.
func readRequirements(t *testing.T, file string) []requirement {
	t.Helper()

	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	var rows []requirement

	for line := range strings.Lines(string(page)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|---") || line == requirementsHeader {
			continue
		}

		cells := strings.Split(strings.Trim(strings.ReplaceAll(line, `\|`, "¦"), "|"), "|")
		if len(cells) != 5 {
			t.Fatalf("%s: the row has %d cells, want 5 as in %q: %s", file, len(cells), requirementsHeader, line)
		}

		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}

		rows = append(rows, requirement{cells[0], cells[1], cells[2], cells[3], cells[4]})
	}

	return rows
}

// checkRequirement returns what is wrong with a row. functions caches the functions of each test file.
func checkRequirement(t *testing.T, file string, row requirement, functions map[string]map[string]bool) []string {
	t.Helper()

	var problems []string

	tests, pages := 0, 0

	for _, link := range pageLink.FindAllStringSubmatch(row.proof, -1) {
		target := path.Join(filepath.ToSlash(filepath.Dir(file)), link[2])
		text, err := os.ReadFile(target)

		switch {
		case err != nil:
			problems = append(problems, err.Error())
		case strings.HasPrefix(target, "docs/") && strings.HasSuffix(target, ".md"):
			pages++
		case strings.HasSuffix(target, "_test.go"):
			tests++

			if functions[target] == nil {
				functions[target] = parseFunctions(t, target, text)
			}

			test, part, hasPart := strings.Cut(link[1], "/")
			if test != link[3] || !functions[target][test] {
				problems = append(problems, fmt.Sprintf("%s has no test %s, or the link is not %s#%s", target, test, link[2], test))
			}

			if hasPart && !strings.Contains(string(text), part) {
				problems = append(problems, fmt.Sprintf("%s does not contain %q of %s", target, part, link[1]))
			}
		default:
			problems = append(problems, target+" is neither a test nor a page in docs/")
		}
	}

	switch words := len(strings.Fields(row.text)); {
	case row.section == "" || words == 0 || words > 25:
		problems = append(problems, "name the section, and the requirement in 1 to 25 words")
	case row.verdict == "holds" && tests == 0:
		problems = append(problems, "holds, and names no test that would fail otherwise")
	case row.verdict == "differs" && pages == 0:
		problems = append(problems, "differs, and links to no decision and no page that says why")
	case row.verdict == "missing" && row.proof == "":
		problems = append(problems, "is missing, and gives no reason")
	case row.verdict != "holds" && row.verdict != "differs" && row.verdict != "missing":
		problems = append(problems, fmt.Sprintf("the verdict %q is not holds, differs or missing", row.verdict))
	}

	return problems
}

// parseFunctions returns the names of the functions that a file declares.
func parseFunctions(t *testing.T, file string, source []byte) map[string]bool {
	t.Helper()

	syntax, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}

	names := map[string]bool{}

	for _, declaration := range syntax.Decls {
		if function, is := declaration.(*ast.FuncDecl); is && function.Recv == nil {
			names[function.Name.Name] = true
		}
	}

	return names
}

// TestRequirementsAreChecked checks that each fault of a row is found.
func TestRequirementsAreChecked(t *testing.T) {
	t.Parallel()

	const (
		test = "[TestRequirements](../../../house_requirements_test.go#TestRequirements)"
		page = "[decision](../../adr/README.md)"
	)

	for name, tc := range map[string]struct {
		row  requirement
		want string
	}{
		"holds":                {requirement{"x", "s", "a b", "holds", test}, ""},
		"differs":              {requirement{"x", "s", "a b", "differs", "no " + page}, ""},
		"missing":              {requirement{"x", "s", "a b", "missing", "too large"}, ""},
		"no test":              {requirement{"x", "s", "a b", "holds", page}, "names no test"},
		"no page":              {requirement{"x", "s", "a b", "differs", test}, "links to no decision"},
		"no reason":            {requirement{"x", "s", "a b", "missing", ""}, "gives no reason"},
		"another verdict":      {requirement{"x", "s", "a b", "partly", test}, `verdict "partly"`},
		"no such test":         {requirement{"x", "s", "a b", "holds", strings.ReplaceAll(test, "TestR", "TestS")}, "has no test"},
		"another label":        {requirement{"x", "s", "a b", "holds", strings.Replace(test, "TestR", "TestS", 1)}, "has no test"},
		"no such part":         {requirement{"x", "s", "a b", "holds", strings.Replace(test, "]", "/no"+"where]", 1)}, "does not contain"},
		"no such page":         {requirement{"x", "s", "a b", "differs", "[a](../../adr/9999.md)"}, "no such file"},
		"a file of code":       {requirement{"x", "s", "a b", "differs", "[a](../../../api/doc.go)"}, "no such file"},
		"a text that is long":  {requirement{"x", "s", strings.Repeat("a ", 26), "holds", test}, "1 to 25 words"},
		"a row of no section":  {requirement{"x", "", "a b", "holds", test}, "name the section"},
		"code that is no test": {requirement{"x", "s", "a b", "holds", "[a](../../../deploy/embed.go)"}, "neither a test nor a page"},
	} {
		got := strings.Join(checkRequirement(t, requirementsFolder+"/x.md", tc.row, map[string]map[string]bool{}), "; ")
		if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
			t.Errorf("%s: problems are %q, want %q", name, got, tc.want)
		}
	}
}
