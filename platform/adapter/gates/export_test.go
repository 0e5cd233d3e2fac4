// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"fmt"
	"strings"
)

// Diagram returns the tree as a Mermaid flow chart.
func Diagram() string {
	var out strings.Builder

	out.WriteString("flowchart TD\n")

	ends := 0

	for _, n := range append(removalNodes(), writeNodes()...) {
		fmt.Fprintf(&out, "    %s{%q}\n", n.name, n.question)

		for _, next := range n.branches {
			if next.end == nil {
				fmt.Fprintf(&out, "    %s -->|%q| %s\n", n.name, next.answer, next.node)

				continue
			}

			ends++
			fmt.Fprintf(&out, "    %s -->|%q| out%d[%q]\n", n.name, next.answer, ends, next.end.label())
		}
	}

	return out.String()
}

func (e *end) label() string {
	text := string(e.outcome) + ": " + string(e.reason)
	if e.verb != "" {
		text = string(e.verb)
	}

	if e.prune {
		text += ", then prune"
	}

	return text
}
