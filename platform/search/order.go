// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

import (
	"fmt"
	"slices"
	"strings"
)

// Order turns an order, "name asc, created_time desc", into that of a statement on the
// table or view of resources that has the alias. It is total: id decides where nothing
// else does. An empty one is the newest first. Errors: *Error.
func Order(alias, text string) (string, error) {
	tokens, err := lex(text)
	if err != nil {
		return "", err
	}

	if tokens[0].kind == tokenEnd {
		return fmt.Sprintf("%[1]s.created_time desc, %[1]s.id desc", alias), nil
	}

	p := &parser{tokens: tokens}

	var (
		parts     []string
		direction string
		named     []string
	)

	for {
		at := p.take()
		if at.kind != tokenWord || !slices.Contains(orderFields(), at.text) {
			return "", wrong(at, "expected a field to order by, one of "+strings.Join(orderFields(), ", "))
		}

		if slices.Contains(named, at.text) {
			return "", &Error{Column: at.column, Message: at.text + " is there twice"}
		}

		named = append(named, at.text)

		direction = "asc"
		if p.accept("desc") {
			direction = "desc"
		} else {
			p.accept("asc")
		}

		parts = append(parts, orderPart(alias, at.text, direction))

		if !p.accept(",") {
			break
		}
	}

	if rest := p.peek(); rest.kind != tokenEnd {
		return "", wrong(rest, "expected asc, desc, a comma or the end")
	}

	if !slices.Contains(named, "id") {
		parts = append(parts, orderPart(alias, "id", direction))
	}

	return strings.Join(parts, ", "), nil
}

func orderFields() []string {
	return []string{
		"id", "kind", "name", "generation", "created_time", "updated_time", "deleted_time",
		"created_by", "updated_by", "deleted_by",
	}
}

// orderPart has only words of ours in it: the field is one of orderFields.
func orderPart(alias, field, direction string) string {
	switch field {
	case "kind", "name", "created_by", "updated_by", "deleted_by":
		field += ` collate "C"`
	}

	// Resources that are not being deleted come last, in both directions.
	if field == "deleted_time" {
		direction += " nulls last"
	}

	return alias + "." + field + " " + direction
}
