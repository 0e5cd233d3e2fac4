// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/net/html"
)

const checkout = "../.."

// builtSite is the site of this checkout with its files.
type builtSite struct {
	*site

	files map[string][]byte
}

func buildSite() (builtSite, error) {
	s, err := loadSite(checkout, audiences(), "")
	if err != nil {
		return builtSite{}, err
	}

	all, err := s.renderFiles()

	return builtSite{s, all}, err
}

// getSite returns the site that all tests share. The tests only read it.
var getSite = sync.OnceValues(buildSite)

func listFiles(t *testing.T) map[string][]byte {
	t.Helper()

	out, err := getSite()
	if err != nil {
		t.Fatal(err)
	}

	return out.files
}

// All links from README, CONTRIBUTING and docs to pages, headings, files, lines and functions are valid.
func TestLinks(t *testing.T) {
	t.Parallel()

	s, err := getSite()
	if err != nil {
		t.Fatal(err)
	}

	if len(s.broken) > 0 {
		t.Errorf("broken links:\n%s", formatBrokenLinks(s.broken))
	}

	if len(s.linked) < 100 {
		t.Errorf("%d links to files: the search is broken", len(s.linked))
	}

	err = filepath.WalkDir(filepath.Join(checkout, "docs"), func(file string, _ fs.DirEntry, err error) error {
		name, _ := filepath.Rel(checkout, file)
		if strings.HasSuffix(name, ".md") && s.byFile[filepath.ToSlash(name)] == nil {
			t.Errorf("%s has no place in hack/site/nav.go, so it is in no menu", name)
		}

		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// findLinks collects the attributes with URLs, and the IDs.
func findLinks(t *testing.T, page []byte) (to, loads []string, ids map[string]bool) {
	t.Helper()

	root, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}

	ids = map[string]bool{}

	for node := range root.Descendants() {
		for _, a := range node.Attr {
			switch {
			case a.Key == "id":
				ids[a.Val] = true
			case a.Key == "src" || a.Key == "href" && node.Data == "link":
				loads = append(loads, a.Val)
			case a.Key == "href" || a.Key == "action":
				to = append(to, a.Val)
			}
		}
	}

	return to, loads, ids
}

// Links in the generated pages point to existing files and IDs of the site. Pages load resources only from the site, and
// only in ways that work without a server.
func TestLinksInPages(t *testing.T) {
	t.Parallel()

	all := listFiles(t)
	ids := map[string]map[string]bool{}

	for name, page := range all {
		if strings.HasSuffix(name, ".html") {
			_, _, ids[name] = findLinks(t, page)
		}
	}

	var wrong []brokenLink

	for _, name := range slices.Sorted(maps.Keys(ids)) {
		to, loads, _ := findLinks(t, all[name])

		for _, load := range loads {
			if load != "data:," && (strings.Contains(load, ":") || all[path.Join(path.Dir(name), load)] == nil) {
				wrong = append(wrong, brokenLink{name, load, "is not loaded from the site"})
			}
		}

		for _, link := range to {
			parsed, err := url.Parse(link)
			if err != nil {
				t.Fatal(err)
			}

			file := name
			if parsed.Path != "" {
				file = path.Join(path.Dir(name), parsed.Path)
			}

			switch {
			case parsed.Scheme != "":
			case all[file] == nil:
				wrong = append(wrong, brokenLink{name, link, "there is no such file"})
			case parsed.Fragment != "" && !ids[file][parsed.Fragment]:
				wrong = append(wrong, brokenLink{name, link, "there is no such id"})
			}
		}

		if bytes.Contains(all[name], []byte("raw HTML omitted")) {
			t.Errorf("%s: a page has HTML, which the site omits", name)
		}
	}

	if len(wrong) > 0 {
		t.Errorf("broken links:\n%s", formatBrokenLinks(wrong))
	}

	if len(ids) < 150 {
		t.Errorf("the site has %d pages", len(ids))
	}

	for _, asset := range []string{"site.css", "site.js"} {
		if regexp.MustCompile(`https?://|url\(|@import|fetch\(|XMLHttp`).Match(all[asset]) {
			t.Errorf("%s loads something", asset)
		}
	}
}

// newFixture returns a site with a few files. The Markdown files are its pages.
func newFixture(t *testing.T, files map[string]string) *site {
	t.Helper()

	root := t.TempDir()
	pages := []string{}

	for name, text := range files {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
			t.Fatal(err)
		}

		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		if strings.HasSuffix(name, ".md") {
			pages = append(pages, "/"+name)
		}
	}

	slices.Sort(pages)

	s, err := loadSite(root, []audience{{Title: "R", Tasks: []task{{Title: "T", files: pages}}}}, "v0.3.1")
	if err != nil {
		t.Fatal(err)
	}

	return s
}

// TestPagesNameTheFilesOfTheirRelease checks that users of a release can copy commands with names of files and images.
func TestPagesNameTheFilesOfTheirRelease(t *testing.T) {
	t.Parallel()

	const text = "# Title\n\n`helm install hyperfleet hyperfleet-0.1.0.tgz`, `hyperfleet-crds-0.2.0.tgz`, `hyperfleet:v0.1.0`, `{newTag: v0.1.0}`, since 0.1.0, 10.0.1.0\n"

	s := newFixture(t, map[string]string{"page.md": text, "CHANGELOG.md": text})

	want := strings.NewReplacer("-0.1.0", "-0.3.1", "-0.2.0", "-0.3.1", ":v0.1.0", ":v0.3.1", "newTag: v0.1.0", "newTag: v0.3.1").Replace(text)
	if got := string(s.byFile["page.md"].source); got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}

	if got := string(s.byFile["CHANGELOG.md"].source); got != text {
		t.Errorf("the CHANGELOG changes:\n%s", got)
	}
}

func TestBrokenLinksAreFound(t *testing.T) {
	t.Parallel()

	for link, want := range map[string]string{
		"b.md": "", "b.md#second-one": "", "#first": "", "../x/code.go": "", "../x/code.go#L2": "", "../x/code.go#Do": "", "../x": "",
		"https://example.com/none": "", "mailto:a@example.com": "",
		"c.md": "no such file", "b.md#third": "no such heading", "#second-one": "no such heading", "../x/code.go#Undo": "no such line",
		"../x/code.go#L0": "no such line", "../x#first": "no headings", "../../etc": "out of the project", "x.png": "no such file",
	} {
		t.Run(link, func(t *testing.T) {
			t.Parallel()

			s := newFixture(t, map[string]string{
				"docs/a.md": "# A\n\n## First\n\n[x](" + link + ")\n", "docs/b.md": "# B\n\n## `Second` one\n",
				"x/code.go": "package x\n\nfunc Do() {}\n",
			})

			if _, err := s.renderFiles(); err != nil {
				t.Fatal(err)
			}

			if got := formatBrokenLinks(s.broken); want == "" && got != "" || !strings.Contains(got, want) {
				t.Errorf("broken: %q, want %q", got, want)
			}
		})
	}
}

// A site with a broken link is not written.
func TestRunRefusesBrokenLinks(t *testing.T) {
	t.Parallel()

	root := t.TempDir()
	if err := os.CopyFS(filepath.Join(root, "docs"), os.DirFS(checkout+"/docs")); err != nil {
		t.Fatal(err)
	}

	for _, name := range []string{
		"README.md", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "deploy/samples/README.md",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o750); err != nil {
			t.Fatal(err)
		}

		if err := os.WriteFile(filepath.Join(root, name), []byte("# A page\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	dist := filepath.Join(root, "dist")
	if err := run(root, dist, ""); err == nil || !strings.Contains(err.Error(), "features_test.go") && !strings.Contains(err.Error(), "_test.go#Test") {
		t.Errorf("the tests that the documentation links to are not there, and: %v", err)
	}

	if _, err := os.Stat(dist); err == nil {
		t.Error("a site was written")
	}
}

func TestSlug(t *testing.T) {
	t.Parallel()

	for heading, want := range map[string]string{
		"First":                         "first",
		"Pools: how many, which":        "pools-how-many-which",
		"`hyperfleet top`, and what":    "hyperfleet-top-and-what",
		"a_b - c":                       "a_b---c",
		"Größe":                         "größe",
		"0.1.0":                         "010",
		"By [name](x.md)":               "by-name",
		"**Strong** (and not)":          "strong-and-not",
		"spec.workload.config.github":   "specworkloadconfiggithub",
		"What it's for?":                "what-its-for",
		"Route 53, Cloudflare & others": "route-53-cloudflare--others",
	} {
		if got := slug(heading); got != want {
			t.Errorf("slug(%q) = %q, want %q", heading, got, want)
		}
	}

	i := newIDs()
	for _, want := range []string{"x", "x-1", "x-2"} {
		if got := string(i.Generate([]byte("X"), 0)); got != want {
			t.Errorf("Generate = %q, want %q", got, want)
		}
	}
}

// Markers, diagrams and code are rendered correctly, and text of a page is not rendered as markup.
func TestRenderedPage(t *testing.T) {
	t.Parallel()

	s := newFixture(t, map[string]string{"a.md": "# A\n\n## How\n\n<!-- run: TestX -->\n```sh\necho <b>\n```\n\n1. One\n\n    <!-- not run: no & yes -->\n" +
		"    ```sh\n    ls\n    ```\n\n```mermaid\na --> b\n```\n\n<!-- a remark -->\n"})

	all, err := s.renderFiles()
	if err != nil {
		t.Fatal(err)
	}

	page := string(all["a.html"])
	for _, want := range []string{
		`<p class="run">Run by the test <code>TestX</code></p>`, `data-language="sh"><code>echo &lt;b&gt;` + "\n",
		`<p class="run">Not run by a test: no &amp; yes</p>`, "<code>a --&gt; b\n</code></pre><figcaption>Diagram, as text (Mermaid): How</figcaption>",
		`<title>A · HyperFleet</title>`, `aria-current="page"`,
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}

	if strings.Contains(page, "a remark") {
		t.Error("the page shows a comment")
	}
}

// The search index has all sections of all pages with valid URLs.
func TestSearchIndex(t *testing.T) {
	t.Parallel()

	all := listFiles(t)

	data, found := bytes.CutPrefix(all["search-index.js"], []byte("window.searchIndex = "))
	if !found {
		t.Fatal("the index is no script that sets window.searchIndex")
	}

	var index []entry
	if err := json.Unmarshal(bytes.TrimSuffix(data, []byte(";\n")), &index); err != nil {
		t.Fatal(err)
	}

	if len(index) < 500 {
		t.Errorf("the index has %d sections", len(index))
	}

	for _, e := range index {
		file, id, _ := strings.Cut(e.URL, "#")
		if page := all[file]; page == nil || id != "" && !bytes.Contains(page, []byte(`id="`+id+`"`)) {
			t.Errorf("%s does not exist", e.URL)
		}
	}
}

func TestSiteIsReproducible(t *testing.T) {
	t.Parallel()

	again, err := buildSite()
	if err != nil {
		t.Fatal(err)
	}

	if !maps.EqualFunc(again.files, listFiles(t), bytes.Equal) {
		t.Error("two builds of the site differ")
	}
}
