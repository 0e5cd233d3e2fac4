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

// sourceDir is the folder of the site for files that are not pages.
const sourceDir = "source"

// resolveLinks replaces the destinations of a page's links and images with paths in the site, and records
// broken links.
func (s *site) resolveLinks(p *page) {
	_ = ast.Walk(p.tree, func(node ast.Node, entering bool) (ast.WalkStatus, error) {
		if !entering {
			return ast.WalkContinue, nil
		}

		switch node := node.(type) {
		case *ast.Link:
			node.Destination = []byte(s.resolveLink(p, string(node.Destination)))
		case *ast.Image:
			node.Destination = []byte(s.resolveLink(p, string(node.Destination)))
		}

		return ast.WalkContinue, nil
	})
}

// resolveLink returns the link in the site for a link in a page. It returns external links and broken links
// unchanged.
func (s *site) resolveLink(p *page, link string) string {
	target, err := url.Parse(link)

	switch {
	case err != nil:
		s.addBroken(p, link, err.Error())

		return link
	case target.Scheme != "" || target.Host != "":
		return link
	}

	file := p.file
	if target.Path != "" {
		file = path.Join(path.Dir(p.file), target.Path)
	}

	out, problem := s.findTarget(file, target.Fragment)
	if problem != "" {
		s.addBroken(p, link, problem)

		return link
	}

	if target.Fragment != "" {
		out += "#" + target.Fragment
	}

	return relativePath(p.Out, out)
}

func (s *site) addBroken(p *page, link, problem string) {
	s.broken = append(s.broken, brokenLink{p.file, link, problem})
}

// findTarget returns the path of a file or folder in the site, or else the problem with the link. If the
// target is not a page, findTarget adds it to s.linked, so that the site shows it.
func (s *site) findTarget(file, fragment string) (out, problem string) {
	if p := s.byFile[file]; p != nil {
		if fragment != "" && !p.anchors[fragment] {
			return "", "the page has no such heading"
		}

		return p.Out, ""
	}

	if strings.HasPrefix(file, "..") {
		return "", "the link points out of the project"
	}

	info, err := os.Stat(filepath.Join(s.root, filepath.FromSlash(file)))

	switch {
	case err != nil:
		return "", "no such file"
	case info.IsDir() && s.byFile[file+"/README.md"] != nil:
		return s.findTarget(file+"/README.md", fragment)
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

// hasAnchor returns true if the anchor is a line, as in #L12, or a function of a file that is not a page. It
// does not check that the line exists.
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

// relativePath returns the relative path from one file of the site to another.
func relativePath(from, to string) string {
	return pathToTop(from) + to
}

// pathToTop returns the relative path from a file of the site to the root folder of the site.
func pathToTop(from string) string { return strings.Repeat("../", strings.Count(from, "/")) }
