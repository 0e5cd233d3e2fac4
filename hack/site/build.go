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

// home is the site's first page, which no file of Markdown is.
const home = "index.html"

// sheet is what the layout shows.
type sheet struct {
	// Top leads to the site's top.
	Top, Title, Version, Home string
	Readers                   []reader
	// Page is nil for pages that are made here.
	Page       *page
	Body       template.HTML
	Contents   []heading
	Prev, Next *page
}

// files are all files of the site.
func (s *site) files() (map[string][]byte, error) {
	layout, err := template.New("").ParseFS(assets, "assets/*.html")
	if err != nil {
		return nil, err
	}

	out := map[string][]byte{}

	for i, p := range s.pages {
		s.resolve(p)

		var body bytes.Buffer
		if err := markdown().Renderer().Render(&body, p.source, p.tree); err != nil {
			return nil, fmt.Errorf("render %s: %w", p.file, err)
		}

		if err := s.around(p, &body); err != nil {
			return nil, err
		}

		sh := s.sheet(p.Out, p.Title)
		sh.Page, sh.Body, sh.Contents = p, template.HTML(body.String()), contents(p.Headings) //nolint:gosec // our own pages

		if i > 0 {
			sh.Prev = s.pages[i-1]
		}

		if i+1 < len(s.pages) {
			sh.Next = s.pages[i+1]
		}

		if out[p.Out], err = execute(layout, "page", sh); err != nil {
			return nil, err
		}
	}

	if out[home], err = execute(layout, "home", s.sheet(home, "Documentation")); err != nil {
		return nil, err
	}

	if err := s.sources(layout, out); err != nil {
		return nil, err
	}

	if out["search-index.js"], err = s.index(); err != nil {
		return nil, err
	}

	for _, name := range []string{"site.css", "site.js"} {
		if out[name], err = assets.ReadFile("assets/" + name); err != nil {
			return nil, err
		}
	}

	return out, nil
}

func (s *site) sheet(out, title string) sheet {
	return sheet{Top: top(out), Title: title, Version: s.version, Home: home, Readers: s.readers}
}

func execute(layout *template.Template, name string, sh sheet) ([]byte, error) {
	var out bytes.Buffer
	if err := layout.ExecuteTemplate(&out, name, sh); err != nil {
		return nil, fmt.Errorf("make %s: %w", sh.Title, err)
	}

	return out.Bytes(), nil
}

// contents are the headings that a page lists beside it, if it is worth it.
func contents(all []heading) []heading {
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

// sources adds the files and folders that pages link to. What is in a linked folder is added too.
func (s *site) sources(layout *template.Template, out map[string][]byte) error {
	for todo := slices.Sorted(maps.Keys(s.linked)); len(todo) > 0; todo = todo[1:] {
		file := todo[0]
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
			var more []string
			body, more, err = s.folder(file, name)
			todo = append(todo, more...)
		case isImage(file):
			out[name], err = os.ReadFile(local)
		default:
			body, err = source(local)
		}

		if err != nil {
			return err
		}

		if body != "" {
			sh := s.sheet(name, file)
			sh.Body = body

			if out[name], err = execute(layout, "page", sh); err != nil {
				return err
			}
		}
	}

	return nil
}

// around adds to the README of a folder what lies beside it. The folders of the documentation
// have indexes of their own.
func (s *site) around(p *page, body *bytes.Buffer) error {
	folder := path.Dir(p.file)
	if path.Base(p.file) != "README.md" || folder == "." || strings.HasPrefix(folder, "docs/") {
		return nil
	}

	list, more, err := s.folder(folder, p.Out)
	for _, file := range more {
		s.linked[file] = true
	}

	body.WriteString("<h2>Files</h2>\n")
	body.WriteString(string(list))

	return err
}

// folder lists what is in a folder, and gives what of it is to be added.
func (s *site) folder(folder, from string) (template.HTML, []string, error) {
	entries, err := os.ReadDir(filepath.Join(s.root, filepath.FromSlash(folder)))
	if err != nil {
		return "", nil, err
	}

	var (
		body strings.Builder
		more []string
	)

	body.WriteString("<ul>\n")

	for _, entry := range entries {
		file := folder + "/" + entry.Name()

		to, why := s.target(file, "")
		if why != "" {
			return "", nil, fmt.Errorf("list %s: %s", file, why)
		}

		if s.byFile[file] == nil {
			more = append(more, file)
		}

		fmt.Fprintf(&body, "<li><a href=\"%s\">%s</a></li>\n",
			template.HTMLEscapeString(relative(from, to)), template.HTMLEscapeString(entry.Name()))
	}

	body.WriteString("</ul>\n")

	return template.HTML(body.String()), more, nil //nolint:gosec // escaped above
}

// source shows a text file, with an anchor for each line, and for each function by its name.
func source(local string) (template.HTML, error) {
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
