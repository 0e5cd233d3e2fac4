// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"embed"
	"fmt"
	"html/template"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

//go:embed assets
var assets embed.FS

// home is the home page of the site. It is not made from a Markdown file.
const home = "index.html"

// layoutData is the data for the layout templates.
type layoutData struct {
	// Top is the relative path to the root folder of the site.
	Top, Title, Version, Home string
	Audiences                 []audience
	// Page is nil for pages that are not made from a Markdown file.
	Page       *page
	Body       template.HTML
	TOC        []heading
	Prev, Next *page
}

// renderFiles returns the content of all files of the site by name.
func (s *site) renderFiles() (map[string][]byte, error) {
	layout, err := template.New("").ParseFS(assets, "assets/*.html")
	if err != nil {
		return nil, err
	}

	out := map[string][]byte{}

	for i, p := range s.pages {
		s.resolveLinks(p)

		var body bytes.Buffer
		if err := markdown().Renderer().Render(&body, p.source, p.tree); err != nil {
			return nil, fmt.Errorf("render %s: %w", p.file, err)
		}

		if err := s.appendFolderFiles(p, &body); err != nil {
			return nil, err
		}

		data := s.newLayoutData(p.Out, p.Title)
		data.Page, data.TOC = p, newTOC(p.Headings)
		data.Body = template.HTML(body.String()) //nolint:gosec // our own pages

		if i > 0 {
			data.Prev = s.pages[i-1]
		}

		if i+1 < len(s.pages) {
			data.Next = s.pages[i+1]
		}

		if out[p.Out], err = renderTemplate(layout, "page", data); err != nil {
			return nil, err
		}
	}

	if out[home], err = renderTemplate(layout, "home", s.newLayoutData(home, "Documentation")); err != nil {
		return nil, err
	}

	if err := s.renderLinkedFiles(layout, out); err != nil {
		return nil, err
	}

	if out["search-index.js"], err = s.renderIndex(); err != nil {
		return nil, err
	}

	for _, name := range []string{"site.css", "site.js"} {
		if out[name], err = assets.ReadFile("assets/" + name); err != nil {
			return nil, err
		}
	}

	return out, nil
}

func (s *site) newLayoutData(out, title string) layoutData {
	return layoutData{Top: pathToTop(out), Title: title, Version: s.version, Home: home, Audiences: s.audiences}
}

func renderTemplate(layout *template.Template, name string, data layoutData) ([]byte, error) {
	var out bytes.Buffer
	if err := layout.ExecuteTemplate(&out, name, data); err != nil {
		return nil, fmt.Errorf("render %s: %w", data.Title, err)
	}

	return out.Bytes(), nil
}

// newTOC returns the table of contents of a page: its headings of level 2, or nil if it has fewer than three of
// them.
func newTOC(all []heading) []heading {
	var out []heading

	for _, h := range all {
		if h.Level == 2 {
			out = append(out, h)
		}
	}

	if len(out) < 3 {
		return nil
	}

	return out
}

// renderLinkedFiles renders the files and folders in s.linked into out, and also the files in a linked
// folder. It renders a text file as a page with its source, and copies an image.
func (s *site) renderLinkedFiles(layout *template.Template, out map[string][]byte) error {
	for queue := slices.Sorted(maps.Keys(s.linked)); len(queue) > 0; queue = queue[1:] {
		file := queue[0]
		local := filepath.Join(s.root, filepath.FromSlash(file))

		info, err := os.Stat(local)
		if err != nil {
			return err
		}

		name := path.Join(sourceDir, file) + ".html"

		switch {
		case info.IsDir():
			name = path.Join(sourceDir, file, "index.html")
		case isImage(file):
			name = file
		}

		if out[name] != nil {
			continue
		}

		var body template.HTML

		switch {
		case info.IsDir():
			var inner []string
			body, inner, err = s.renderFolder(file, name)
			queue = append(queue, inner...)
		case isImage(file):
			out[name], err = os.ReadFile(local)
		default:
			body, err = renderSource(local)
		}

		if err != nil {
			return err
		}

		if body != "" {
			data := s.newLayoutData(name, file)
			data.Body = body

			if out[name], err = renderTemplate(layout, "page", data); err != nil {
				return err
			}
		}
	}

	return nil
}

// appendFolderFiles appends a list of the files in a folder to the README of the folder. It skips the root folder
// and the folders below docs, which have their own indexes.
func (s *site) appendFolderFiles(p *page, body *bytes.Buffer) error {
	folder := path.Dir(p.file)
	if path.Base(p.file) != "README.md" || folder == "." || strings.HasPrefix(folder, "docs/") {
		return nil
	}

	list, files, err := s.renderFolder(folder, p.Out)
	for _, file := range files {
		s.linked[file] = true
	}

	body.WriteString("<h2>Files</h2>\n")
	body.WriteString(string(list))

	return err
}

// renderFolder returns a list of links to the files of a folder, and the files that are not pages. The caller
// must add these files to the site.
func (s *site) renderFolder(folder, from string) (template.HTML, []string, error) {
	entries, err := os.ReadDir(filepath.Join(s.root, filepath.FromSlash(folder)))
	if err != nil {
		return "", nil, err
	}

	var (
		body  strings.Builder
		files []string
	)

	body.WriteString("<ul>\n")

	for _, entry := range entries {
		file := folder + "/" + entry.Name()

		target, problem := s.findTarget(file, "")
		if problem != "" {
			return "", nil, fmt.Errorf("list %s: %s", file, problem)
		}

		if s.byFile[file] == nil {
			files = append(files, file)
		}

		fmt.Fprintf(&body, "<li><a href=\"%s\">%s</a></li>\n",
			template.HTMLEscapeString(relativePath(from, target)), template.HTMLEscapeString(entry.Name()))
	}

	body.WriteString("</ul>\n")

	return template.HTML(body.String()), files, nil //nolint:gosec // escaped above
}

// renderSource returns a text file as HTML, with an anchor for each line and for each function.
func renderSource(local string) (template.HTML, error) {
	text, err := os.ReadFile(local)
	if err != nil {
		return "", err
	}

	var body strings.Builder

	body.WriteString("<pre class=\"source\" tabindex=\"0\"><code>")

	n := 0

	for line := range strings.Lines(string(text)) {
		n++

		if name := funcLine.FindStringSubmatch(line); name != nil {
			fmt.Fprintf(&body, "<a id=\"%s\"></a>", name[1])
		}

		fmt.Fprintf(&body, "<span id=\"L%d\">%s</span>", n, template.HTMLEscapeString(line))
	}

	body.WriteString("</code></pre>\n")

	return template.HTML(body.String()), nil //nolint:gosec // escaped above
}
