// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gates

import (
	"fmt"
	"strings"
)

// Diagram is the tree as a Mermaid flow chart.
func Diagram() string {
	var out strings.Builder

	out.WriteString("flowchart TD\n")

	ends := 0

	for _, one := range append(removal(), writing()...) {
		fmt.Fprintf(&out, "    %s{%q}\n", one.name, one.question)

		for _, next := range one.branches {
			if next.end == nil {
				fmt.Fprintf(&out, "    %s -->|%q| %s\n", one.name, next.answer, next.to)

				continue
			}

			ends++
			fmt.Fprintf(&out, "    %s -->|%q| out%d[%q]\n", one.name, next.answer, ends, next.end.label())
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
