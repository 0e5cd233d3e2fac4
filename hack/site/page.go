// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
)

// site is what is read of a checkout.
type site struct {
	root    string
	version string
	readers []reader
	// pages in the order of the readers, and by file.
	pages  []*page
	byFile map[string]*page
	// linked are files and folders that are no pages and that a page links to.
	linked map[string]bool
	broken []broken
}

// page is one file of Markdown.
type page struct {
	// file in the checkout, such as docs/guides/pools.md, and in the site.
	file, Out string
	Title     string
	// Name is what lists call it.
	Name   string
	Reader string
	source []byte
	tree   ast.Node
	// anchors are the ids in the page.
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
		goldmark.WithRendererOptions(ours()),
	)
}

// load reads the pages that readers have.
func load(root string, all []reader) (*site, error) {
	placed, err := place(root, all)
	if err != nil {
		return nil, err
	}

	s := &site{root: root, readers: placed, byFile: map[string]*page{}, linked: map[string]bool{}}

	for i := range s.readers {
		r := &s.readers[i]

		for j := range r.Tasks {
			for _, file := range r.Tasks[j].pages {
				p, err := s.read(file)
				if err != nil {
					return nil, err
				}

				if s.byFile[file] != nil {
					return nil, fmt.Errorf("page %s has two places: in hack/site/nav.go it needs one", file)
				}

				p.Reader = r.Title
				s.byFile[file] = p
				s.pages = append(s.pages, p)
				r.Tasks[j].Pages = append(r.Tasks[j].Pages, p)
			}
		}
	}

	return s, nil
}

// read reads one page.
func (s *site) read(file string) (*page, error) {
	source, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(file)))
	if err != nil {
		return nil, err
	}

	p := &page{file: file, Out: strings.TrimSuffix(file, ".md") + ".html", source: source, anchors: map[string]bool{}}
	p.tree = markdown().Parser().Parse(text.NewReader(source), parser.WithContext(parser.NewContext(parser.WithIDs(newIDs()))))

	_ = ast.Walk(p.tree, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		found, is := node.(*ast.Heading)
		if !is || !entering {
			return ast.WalkContinue, nil
		}

		h := heading{Level: found.Level, Text: plain(found, source)}
		if id, there := found.AttributeString("id"); there {
			h.ID = string(id.([]byte)) //nolint:forcetypeassert,errcheck // goldmark's own
		}

		p.anchors[h.ID] = true
		p.Headings = append(p.Headings, h)

		return ast.WalkSkipChildren, nil
	})

	if len(p.Headings) == 0 || p.Headings[0].Level != 1 {
		return nil, fmt.Errorf("page %s does not begin with a title", file)
	}

	p.Title = p.Headings[0].Text
	p.Name = cmp.Or(names()[file], p.Title)

	return p, nil
}

// plain is the text of a node, without its marks.
func plain(node ast.Node, source []byte) string {
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

// ids are the anchors of headings as GitHub makes them, which the pages' links rely on.
type ids struct{ taken map[string]int }

func newIDs() *ids { return &ids{taken: map[string]int{}} }

// Generate gives a heading's id: its text in lower case, without punctuation, with hyphens for
// spaces, and with a number where there is one already.
func (i *ids) Generate(value []byte, _ ast.NodeKind) []byte {
	id := slug(string(value))

	for n, taken := i.taken[id]; taken; n, taken = i.taken[id] {
		i.taken[id] = n + 1
		id = fmt.Sprintf("%s-%d", id, n+1)
	}

	i.taken[id] = 0

	return []byte(id)
}

// Put takes an id that was given by hand.
func (i *ids) Put(value []byte) { i.taken[string(value)] = 0 }
