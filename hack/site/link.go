// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// sourceDir is the folder of the site for files that are no pages.
const sourceDir = "source"

// resolve makes the links of a page those of the site, and notes the broken ones.
func (s *site) resolve(p *page) {
	_ = ast.Walk(p.tree, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}

		switch node := node.(type) {
		case *ast.Link:
			node.Destination = []byte(s.link(p, string(node.Destination)))
		case *ast.Image:
			node.Destination = []byte(s.link(p, string(node.Destination)))
		}

		return ast.WalkContinue, nil
	})
}

// link is what a link of a page is in the site.
func (s *site) link(p *page, link string) string {
	to, err := url.Parse(link)

	switch {
	case err != nil:
		s.fails(p, link, err.Error())

		return link
	case to.Scheme != "" || to.Host != "":
		return link
	}

	file := p.file
	if to.Path != "" {
		file = path.Join(path.Dir(p.file), to.Path)
	}

	out, why := s.target(file, to.Fragment)
	if why != "" {
		s.fails(p, link, why)

		return link
	}

	if to.Fragment != "" {
		out += "#" + to.Fragment
	}

	return relative(p.Out, out)
}

func (s *site) fails(p *page, link, why string) {
	s.broken = append(s.broken, broken{p.file, link, why})
}

// target is where a file or folder is in the site, or why it is not there.
func (s *site) target(file, fragment string) (out, why string) {
	if other := s.byFile[file]; other != nil {
		if fragment != "" && !other.anchors[fragment] {
			return "", "the page has no such heading"
		}

		return other.Out, ""
	}

	if strings.HasPrefix(file, "..") {
		return "", "it leads out of the project"
	}

	info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(file)))

	switch {
	case err != nil:
		return "", "there is no such file"
	case info.IsDir() && s.byFile[file+"/README.md"] != nil:
		return s.target(file+"/README.md", fragment)
	case info.IsDir() && fragment != "":
		return "", "a folder has no headings"
	}

	s.linked[file] = true

	switch {
	case info.IsDir():
		return path.Join(sourceDir, file, "index.html"), ""
	case isImage(file):
		return file, ""
	}

	if fragment != "" {
		text, err := os.ReadFile(filepath.Join(s.root, filepath.FromSlash(file)))
		if err != nil || !hasAnchor(text, fragment) {
			return "", "the file has no such line or function"
		}
	}

	return path.Join(sourceDir, file) + ".html", ""
}

var (
	lineAnchor = regexp.MustCompile(`^L[1-9]\d*$`)
	funcLine   = regexp.MustCompile(`^func (\w+)\(`)
)

// hasAnchor says whether a file that is no page has the line, as #L12, or the function.
func hasAnchor(text []byte, anchor string) bool {
	return lineAnchor.MatchString(anchor) || bytes.Contains(append([]byte("\n"), text...), []byte("\nfunc "+anchor+"("))
}

func isImage(file string) bool {
	switch path.Ext(file) {
	case ".png", ".svg", ".jpg", ".gif":
		return true
	}

	return false
}

// relative is the way from one file of the site to another, by the site's top.
func relative(from, to string) string {
	return top(from) + to
}

// top leads from a file of the site to the folder that all is in.
func top(from string) string { return strings.Repeat("../", strings.Count(from, "/")) }
