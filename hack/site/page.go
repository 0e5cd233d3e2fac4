// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// site has the pages of a checkout.
type site struct {
	root      string
	version   string
	audiences []audience
	// pages has the pages in the order of the audiences. byFile has the same pages by file.
	pages  []*page
	byFile map[string]*page
	// linked has the files and folders that are not pages, and to which a page links. The site shows their
	// content.
	linked map[string]bool
	broken []brokenLink
}

// page is a page of the site that is made from a Markdown file.
type page struct {
	// file is the path in the checkout, for example docs/guides/pools.md. Out is the path in the site.
	file, Out string
	Title     string
	// Name is the name of the page in lists.
	Name string
	// Audience is the title of the page's audience.
	Audience string
	source   []byte
	tree     ast.Node
	// anchors has the IDs in the page.
	anchors  map[string]bool
	Headings []heading
}

type heading struct {
	Level    int
	ID, Text string
}

func markdown() goldmark.Markdown {
	return goldmark.New(
		goldmark.WithExtensions(extension.Table, extension.Strikethrough),
		goldmark.WithParserOptions(parser.WithAutoHeadingID()),
		goldmark.WithRendererOptions(nodeRenderers()),
	)
}

// loadSite loads the pages of all audiences for a version, and returns an error if a page belongs to two tasks.
func loadSite(root string, all []audience, version string) (*site, error) {
	resolved, err := resolvePages(root, all)
	if err != nil {
		return nil, err
	}

	s := &site{root: root, version: version, audiences: resolved, byFile: map[string]*page{}, linked: map[string]bool{}}

	for i := range s.audiences {
		a := &s.audiences[i]

		for j := range a.Tasks {
			for _, file := range a.Tasks[j].files {
				p, err := s.loadPage(file)
				if err != nil {
					return nil, err
				}

				if s.byFile[file] != nil {
					return nil, fmt.Errorf("page %s is listed twice in hack/site/nav.go: remove one of them", file)
				}

				p.Audience = a.Title
				s.byFile[file] = p
				s.pages = append(s.pages, p)
				a.Tasks[j].Pages = append(a.Tasks[j].Pages, p)
			}
		}
	}

	return s, nil
}

var (
	// releaseVersion is the form of the versions of releases.
	releaseVersion = regexp.MustCompile(`^v\d+[.]\d+[.]\d+$`)
	// exampleVersion is the version in the names of the files and images of a release, as the pages write it. The page
	// about upgrades names the files of the next release.
	exampleVersion = regexp.MustCompile(`(hyperfleet(?:-[a-z]+)?[-:]v?|newTag: v|VERSION=v)0[.][12][.]0\b`)
)

// setVersion replaces the example version in the names of files and images by the version of the site, so that users of a
// release can copy the commands. The CHANGELOG and the decisions name real versions.
func (s *site) setVersion(file string, source []byte) []byte {
	if !releaseVersion.MatchString(s.version) || file == "CHANGELOG.md" || strings.HasPrefix(file, "docs/adr/") {
		return source
	}

	return exampleVersion.ReplaceAll(source, []byte("${1}"+strings.TrimPrefix(s.version, "v")))
}

// loadPage reads and parses one page. A page must start with a title.
func (s *site) loadPage(file string) (*page, error) {
	source, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}

	source = s.setVersion(file, source)
	p := &page{file: file, Out: strings.TrimSuffix(file, ".md") + ".html", source: source, anchors: map[string]bool{}}
	p.tree = markdown().Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(newIDs()))))

	_ = ast.Walk(p.tree, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		headingNode, isHeading := node.(*ast.Heading)
		if !isHeading || !entering {
			return ast.WalkContinue, nil
		}

		h := heading{Level: headingNode.Level, Text: plainText(headingNode, source)}
		if id, ok := headingNode.AttributeString("id"); ok {
			h.ID = string(id.([]byte)) //nolint:forcetypeassert,errcheck // goldmark sets []byte
		}

		p.anchors[h.ID] = true
		p.Headings = append(p.Headings, h)

		return ast.WalkSkipChildren, nil
	})

	if len(p.Headings) == 0 || p.Headings[0].Level != 1 {
		return nil, fmt.Errorf("page %s does not start with a heading of level 1", file)
	}

	p.Title = p.Headings[0].Text
	p.Name = cmp.Or(pageNames()[file], p.Title)

	return p, nil
}

// plainText returns the text of a node without Markdown syntax.
func plainText(node ast.Node, source []byte) string {
	var out strings.Builder

	_ = ast.Walk(node, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			if node.Type() == ast.TypeBlock {
				out.WriteByte(' ')
			}

			return ast.WalkContinue, nil
		}

		switch node := node.(type) {
		case *ast.Text:
			out.Write(node.Segment.Value(source))

			if node.SoftLineBreak() || node.HardLineBreak() {
				out.WriteByte(' ')
			}
		case *ast.String:
			out.Write(node.Value)
		case *ast.FencedCodeBlock, *ast.CodeBlock:
			out.Write(node.Lines().Value(source))
		}

		return ast.WalkContinue, nil
	})

	return strings.Join(strings.Fields(out.String()), " ")
}

// ids generates the IDs of headings in the same way as GitHub, because the links in the pages use these IDs.
type ids struct{ used map[string]int }

func newIDs() *ids { return &ids{used: map[string]int{}} }

// Generate returns the ID of a heading. The ID is the text in lower case without punctuation and with hyphens
// in place of spaces. If the page already has this ID, a number is appended.
func (i *ids) Generate(value []byte, _ ast.NodeKind) []byte {
	id := slug(string(value))

	for n, isTaken := i.used[id]; isTaken; n, isTaken = i.used[id] {
		i.used[id] = n + 1
		id = fmt.Sprintf("%s-%d", id, n+1)
	}

	i.used[id] = 0

	return []byte(id)
}

// Put records an ID that is set in the page.
func (i *ids) Put(value []byte) { i.used[string(value)] = 0 }
