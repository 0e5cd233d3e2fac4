// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// entry is a section of a page, as the search knows it.
type entry struct {
	// URL from the site's top, with the anchor.
	URL     string `json:"u"`
	Reader  string `json:"r"`
	Title   string `json:"t"`
	Heading string `json:"h,omitempty"`
	Text    string `json:"x"`
}

// entries are the sections of a page: one for each heading.
func (p *page) entries() []entry {
	var (
		out  []entry
		text []string
	)

	flush := func() {
		if len(out) > 0 {
			out[len(out)-1].Text = strings.Join(text, " ")
		}

		text = nil
	}

	for node := p.tree.FirstChild(); node != nil; node = node.NextSibling() {
		h, is := node.(*ast.Heading)
		if !is {
			if said := plain(node, p.source); said != "" {
				text = append(text, said)
			}

			continue
		}

		flush()

		e := entry{URL: p.Out, Reader: p.Reader, Title: p.Title}

		if h.Level > 1 {
			id, _ := h.AttributeString("id")
			e.Heading = plain(h, p.source)
			e.URL += "#" + string(id.([]byte)) //nolint:forcetypeassert,errcheck // goldmark's own
		}

		out = append(out, e)
	}

	flush()

	return out
}

// index is the script that gives the search all sections. It is a script, and not data to be
// fetched, since pages of a folder may load scripts from it and nothing else.
func (s *site) index() ([]byte, error) {
	all := []entry{}
	for _, p := range s.pages {
		all = append(all, p.entries()...)
	}

	data, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}

	return append(append([]byte("window.searchIndex = "), data...), ";\n"...), nil
}
