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

// marker matches a comment with the test that runs a block of commands, or the reason why no test runs it.
var marker = regexp.MustCompile(`<!-- (run|not run): (.+?) -->`)

// nodeRenderer renders HTML comments and code blocks.
type nodeRenderer struct{}

func nodeRenderers() renderer.Option {
	return renderer.WithNodeRenderers(util.Prioritized(nodeRenderer{}, 100))
}

// RegisterFuncs implements renderer.NodeRenderer.
func (nodeRenderer) RegisterFuncs(registerer renderer.NodeRendererFuncRegisterer) {
	registerer.Register(ast.KindHTMLBlock, renderHTML)
	registerer.Register(ast.KindFencedCodeBlock, renderCode)
}

// renderHTML renders a marker as a line above its commands. It omits all other HTML, which pages do not use.
func renderHTML(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	block, isHTML := node.(*ast.HTMLBlock)
	if !isHTML || !entering {
		return ast.WalkContinue, nil
	}

	raw := block.Lines().Value(source)
	if block.HasClosure() {
		raw = append(bytes.Clone(raw), block.ClosureLine.Value(source)...)
	}

	if match := marker.FindSubmatch(raw); match != nil {
		text := "Not run by a test: " + html.EscapeString(string(match[2]))
		if string(match[1]) == "run" {
			text = "Run by the test <code>" + html.EscapeString(string(match[2])) + "</code>"
		}

		fmt.Fprintf(w, "<p class=\"run\">%s</p>\n", text)
	}

	return ast.WalkContinue, nil
}

// renderCode renders code blocks. It renders a Mermaid diagram as text with a caption, because the library that
// draws diagrams would have to be loaded from the Internet.
func renderCode(w util.BufWriter, source []byte, node ast.Node, entering bool) (ast.WalkStatus, error) {
	block, isCode := node.(*ast.FencedCodeBlock)
	if !isCode || !entering {
		return ast.WalkContinue, nil
	}

	language := html.EscapeString(string(block.Language(source)))
	code := html.EscapeString(string(block.Lines().Value(source)))

	if language == "mermaid" {
		fmt.Fprintf(w, "<figure class=\"diagram\"><pre tabindex=\"0\"><code>%s</code></pre>"+
			"<figcaption>Diagram, as text (Mermaid): %s</figcaption></figure>\n", code, html.EscapeString(sectionTitle(node, source)))

		return ast.WalkSkipChildren, nil
	}

	fmt.Fprintf(w, "<pre class=\"code\" tabindex=\"0\" data-language=\"%s\"><code>%s</code></pre>\n", language, code)

	return ast.WalkSkipChildren, nil
}

// sectionTitle returns the text of the heading above a node.
func sectionTitle(node ast.Node, source []byte) string {
	for sibling := node; sibling != nil; sibling = sibling.PreviousSibling() {
		if h, isHeading := sibling.(*ast.Heading); isHeading {
			return plainText(h, source)
		}
	}

	return "see above"
}
