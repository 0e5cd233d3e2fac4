// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"html"
	"regexp"

	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/renderer"
	"github.com/yuin/goldmark/util"
)

// marker says which test runs a block of commands, or why none does.
var marker = regexp.MustCompile(`<!-- (run|not run): (.+?) -->`)

// nodes renders what the site shows in a way of its own.
type nodes struct{}

func ours() renderer.Option { return renderer.WithNodeRenderers(util.Prioritized(nodes{}, 100)) }

// RegisterFuncs is goldmark's.
func (nodes) RegisterFuncs(to renderer.NodeRendererFuncRegisterer) {
	to.Register(ast.KindHTMLBlock, renderHTML)
	to.Register(ast.KindFencedCodeBlock, renderCode)
}

// renderHTML shows markers as a line above their commands. There is no other HTML in pages.
func renderHTML(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	block, is := node.(*ast.HTMLBlock)
	if !is || !entering {
		return ast.WalkContinue, nil
	}

	raw := block.Lines().Value(source)
	if block.HasClosure() {
		raw = append(bytes.Clone(raw), block.ClosureLine.Value(source)...)
	}

	if says := marker.FindSubmatch(raw); says != nil {
		what := "Not run by a test: " + html.EscapeString(string(says[2]))
		if string(says[1]) == "run" {
			what = "Run by the test <code>" + html.EscapeString(string(says[2])) + "</code>"
		}

		fmt.Fprintf(w, "<p class=\"run\">%s</p>\n", what)
	}

	return ast.WalkContinue, nil
}

// renderCode shows diagrams as text with a caption: what draws them would have to come from the net.
func renderCode(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	block, is := node.(*ast.FencedCodeBlock)
	if !is || !entering {
		return ast.WalkContinue, nil
	}

	language := html.EscapeString(string(block.Language(source)))
	code := html.EscapeString(string(block.Lines().Value(source)))

	if language == "mermaid" {
		fmt.Fprintf(w, "<figure class=\"diagram\"><pre tabindex=\"0\"><code>%s</code></pre>"+
			"<figcaption>Diagram, as text (Mermaid): %s</figcaption></figure>\n", code, html.EscapeString(section(node, source)))

		return ast.WalkSkipChildren, nil
	}

	fmt.Fprintf(w, "<pre class=\"code\" tabindex=\"0\" data-language=\"%s\"><code>%s</code></pre>\n", language, code)

	return ast.WalkSkipChildren, nil
}

// section is the heading that a node is below.
func section(node ast.Node, source []byte) string {
	for at := node; at != nil; at = at.PreviousSibling() {
		if h, is := at.(*ast.Heading); is {
			return plain(h, source)
		}
	}

	return "see above"
}
