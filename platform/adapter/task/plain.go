// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"text/template/parse"
	"unicode/utf8"
)

// plainPart is a text, or the path of a variable that is printed, and the action that prints it.
type plainPart struct {
	piece

	path []string
}

// newPlainParts returns the parts of a template that only prints variables and fields of them, as most templates of task
// files do, and nil for any other template. It must be called before the walker changes the template.
func newPlainParts(root *parse.ListNode) []plainPart {
	var out []plainPart

	for _, node := range root.Nodes {
		switch typed := node.(type) {
		case *parse.TextNode:
			out = append(out, plainPart{piece: piece{text: string(typed.Text)}})
		case *parse.ActionNode:
			if len(typed.Pipe.Decl) > 0 || len(typed.Pipe.Cmds) != 1 || len(typed.Pipe.Cmds[0].Args) != 1 {
				return nil
			}

			field, ok := typed.Pipe.Cmds[0].Args[0].(*parse.FieldNode)
			if !ok {
				return nil
			}

			out = append(out, plainPart{piece: piece{source: typed.String()}, path: field.Ident})
		default:
			return nil
		}
	}

	return out
}

// renderPlain renders a template that only prints variables, without the template engine, which takes ten times as long.
// It returns false for any other template, and for values that the engine has to print or to reject.
func (t *Template) renderPlain(vars map[string]any) (pieces []piece, ok bool) {
	remaining := maxRendered

	for _, part := range t.plain {
		if part.path != nil {
			var value any = vars

			for _, name := range part.path {
				object, _ := value.(map[string]any)
				value = object[name]
			}

			switch value.(type) {
			case string, int64, float64, bool:
				part.text = toText(value)
			default:
				return nil, false
			}
		}

		if remaining -= len(part.text); remaining < 0 || !utf8.ValidString(part.text) {
			return nil, false
		}

		pieces = append(pieces, part.piece)
	}

	return pieces, len(t.plain) > 0
}
