// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"strings"

	"github.com/yuin/goldmark/ast"
)

// entry is a section of a page in the search index.
type entry struct {
	// URL is relative to the root folder of the site and includes the anchor.
	URL      string `json:"u"`
	Audience string `json:"r"`
	Title    string `json:"t"`
	Heading  string `json:"h,omitempty"`
	Text     string `json:"x"`
}

// indexEntries returns one entry for each heading of a page.
func (p *page) indexEntries() []entry {
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
		h, isHeading := node.(*ast.Heading)
		if !isHeading {
			if paragraph := plainText(node, p.source); paragraph != "" {
				text = append(text, paragraph)
			}

			continue
		}

		flush()

		e := entry{URL: p.Out, Audience: p.Audience, Title: p.Title}

		if h.Level > 1 {
			id, _ := h.AttributeString("id")
			e.Heading = plainText(h, p.source)
			e.URL += "#" + string(id.([]byte)) //nolint:forcetypeassert,errcheck // goldmark sets []byte
		}

		out = append(out, e)
	}

	flush()

	return out
}

// renderIndex returns a script that sets the search index. The index is a script and not a JSON file, because
// pages that are opened from a folder can load scripts but cannot fetch data.
func (s *site) renderIndex() ([]byte, error) {
	all := []entry{}
	for _, p := range s.pages {
		all = append(all, p.indexEntries()...)
	}

	data, err := json.Marshal(all)
	if err != nil {
		return nil, err
	}

	return append(append([]byte("window.searchIndex = "), data...), ";\n"...), nil
}
