// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
)

// field is what can be compared.
type field interface {
	// compare checks that the value suits the field.
	compare(operator string, value token) (node, error)
	// null is true for resources without the field.
	null() node
}

// fieldOf finds out what a field is. The first part is always a word of ours.
func fieldOf(first token, parts []token) (field, error) {
	names := make([]string, 0, len(parts))
	for _, part := range parts {
		names = append(names, part.text)
	}

	if first.kind == tokenWord {
		if found := column(strings.Join(names, ".")); found != nil {
			return found, nil
		}

		switch {
		case (names[0] == "labels" || names[0] == "tenancy") && len(names) == 2:
			return keyed(names[0], names[1]), nil
		case names[0] == "spec" && len(names) > 1:
			return spec{path: names[1:]}, nil
		case names[0] == "status" && len(names) > 2 && names[1] == "conditions":
			return conditionOf(parts[2:])
		}
	}

	return nil, &Error{Column: first.column, Message: fmt.Sprintf("no field %.80q: there are id, kind, name, generation, "+
		"created_time, updated_time, deleted_time, created_by, updated_by, deleted_by, owner_references.id, "+
		"owner_references.kind, labels.KEY, tenancy.KEY, spec.PATH and status.conditions.TYPE; a part with other characters "+
		"than letters, digits, _ and - is written in quotes", strings.Join(names, "."))}
}

// column is a field with a column of its own; nil if there is none.
func column(name string) field {
	in := func(column string, kind valueKind) field {
		return stored{kind: kind, place: func(alias string, _ *Args) string { return alias + "." + column }}
	}

	switch name {
	case "id":
		return in("id", kindID)
	case "owner_references.id", "owner_id":
		return in("owner_id", kindID)
	case "owner_references.kind":
		return in("owner_kind", kindText)
	case "kind", "name":
		return in(name, kindText)
	case "created_by", "updated_by", "deleted_by":
		// The column holds an empty text where the resource has no such field.
		return stored{kind: kindText, place: func(alias string, _ *Args) string { return "nullif(" + alias + "." + name + ", '')" }}
	case "generation":
		return in(name, kindNumber)
	case "created_time", "updated_time", "deleted_time":
		return in(name, kindTime)
	default:
		return nil
	}
}

// keyed is a key of a column of texts by key.
func keyed(column, key string) field {
	return stored{
		kind: kindText,
		place: func(alias string, args *Args) string {
			return "(" + alias + "." + column + " ->> " + args.Add(key) + "::text)"
		},
		column: column, within: func(value any) any { return map[string]any{key: value} },
	}
}

// valueKind is a type of fields: how an argument is cast to it.
type valueKind string

const (
	kindText   valueKind = "::text"
	kindNumber valueKind = "::text::numeric"
	kindTime   valueKind = "::timestamptz"
	kindID     valueKind = "::uuid"
)

// bound is a value that suits its kind.
type bound struct {
	kind  valueKind
	value any
}

// sql is the value as an argument of its type.
func (b bound) sql(args *Args) string { return args.Add(b.value) + string(b.kind) }

// bind checks that a value suits a kind.
func bind(kind valueKind, value token) (bound, error) {
	switch kind {
	case kindNumber:
		number, err := numberOf(value)

		return bound{kind, number}, err
	case kindTime:
		moment, err := timeOf(value)

		return bound{kind, moment}, err
	case kindID:
		parsed, err := uuid.Parse(value.text)
		if value.kind != tokenString || err != nil || len(value.text) != len(uuid.Nil.String()) {
			return bound{}, wrong(value, "expected a UUID as a string")
		}

		return bound{kind, parsed.String()}, nil
	default:
		if value.kind != tokenString {
			return bound{}, wrong(value, "expected text as a string, in single quotes")
		}

		return bound{kind, value.text}, nil
	}
}

// numberOf is the number as it is written, if a double can hold one of its size: the
// database's own numbers can be made to fill its memory.
func numberOf(value token) (string, error) {
	if value.kind != tokenNumber {
		return "", wrong(value, "expected a number")
	}

	number, err := strconv.ParseFloat(value.text, 64)
	if err != nil || math.IsInf(number, 0) || len(value.text) > 64 {
		return "", &Error{Column: value.column, Message: fmt.Sprintf("%.40q is no number", value.text)}
	}

	return value.text, nil
}

func timeOf(value token) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if moment, err := time.Parse(layout, value.text); err == nil && value.kind == tokenString {
			return moment.UTC().Truncate(time.Microsecond), nil
		}
	}

	return time.Time{}, wrong(value, "expected a time as a string, '2006-01-02T15:04:05Z' or '2006-01-02'")
}

// ordered is the expression to compare by, and whether text has to be ordered by bytes.
func ordered(expression string, kind valueKind, operator string) string {
	if kind == kindText && operator != "=" {
		return expression + ` collate "C"`
	}

	return expression
}

// stored is a field whose type is known.
type stored struct {
	kind valueKind
	// place is where it is.
	place func(alias string, args *Args) string
	// column, if there, is one of JSON, and within what that contains where the field has
	// the value: an index answers it.
	column string
	within func(value any) any
}

func (f stored) compare(operator string, value token) (node, error) {
	to, err := bind(f.kind, value)
	if err != nil {
		return nil, err
	}

	return func(alias string, args *Args) string {
		if operator == "=" && f.column != "" {
			return contains(alias+"."+f.column, f.within(to.value), args)
		}

		return ordered(f.place(alias, args), f.kind, operator) + " " + operator + " " + to.sql(args)
	}, nil
}

func (f stored) null() node {
	return func(alias string, args *Args) string { return f.place(alias, args) + " is null" }
}

// contains is containment, which the indexes on JSON columns answer.
func contains(column string, part any, args *Args) string {
	written, err := json.Marshal(part)
	if err != nil {
		// Maps of strings and checked numbers can be written.
		return "false"
	}

	return column + " @> " + args.Add(string(written)) + "::text::jsonb"
}

// conditionOf is status.conditions.TYPE, with or without subfield.
func conditionOf(parts []token) (field, error) {
	of, sub := parts[0].text, "status"
	if len(parts) > 1 {
		sub = parts[1].text
	}

	switch {
	case len(parts) > 2:
		return nil, &Error{Column: parts[2].column, Message: "a condition's fields have no fields"}
	case sub == "status", sub == "reason", sub == "message":
		return stored{
			kind: kindText, place: conditionPart(of, sub, ""),
			column: "conditions", within: func(value any) any { return map[string]any{of: map[string]any{sub: value}} },
		}, nil
	case sub == "observed_generation":
		return stored{kind: kindNumber, place: conditionPart(of, sub, "::numeric")}, nil
	case sub == "created_time", sub == "last_transition_time":
		return stored{kind: kindTime, place: conditionPart(of, sub, "::timestamptz")}, nil
	case sub == "last_updated_time":
		// A report that says the same again writes its time alone.
		return stored{kind: kindTime, place: func(alias string, args *Args) string {
			of := args.Add(of) + "::text"

			return "greatest((" + alias + ".conditions -> " + of + " ->> " + args.Add(sub) + "::text)::timestamptz, (" +
				alias + ".reported ->> " + of + ")::timestamptz)"
		}}, nil
	default:
		return nil, &Error{Column: parts[1].column, Message: fmt.Sprintf("a condition has no field %.40q: there are status, reason, "+
			"message, observed_generation, created_time, last_updated_time and last_transition_time", sub)}
	}
}

// conditionPart is where a field of a condition is, as a type.
func conditionPart(of, sub, as string) func(alias string, args *Args) string {
	return func(alias string, args *Args) string {
		return "(" + alias + ".conditions -> " + args.Add(of) + "::text ->> " + args.Add(sub) + "::text)" + as
	}
}

// spec is a place in the spec, whose type only the resource knows.
type spec struct {
	path []string
}

func (f spec) compare(operator string, value token) (node, error) {
	jsonType, to, err := specValue(value)
	if err != nil {
		return nil, err
	}

	if jsonType == "boolean" && operator != "=" {
		return nil, &Error{Column: value.column, Message: "true and false have no order: write = or !="}
	}

	if part, ok := f.part(operator, jsonType, to); ok {
		return func(alias string, args *Args) string { return contains(alias+".spec", part, args) }, nil
	}

	return func(alias string, args *Args) string {
		place := f.expression(alias, args)
		text := "(" + place + " #>> '{}')"

		switch jsonType {
		case "number":
			text += "::numeric"
		case "string":
			text = ordered(text, kindText, operator)
		}

		// Nothing is said of the order in which and evaluates, but of case there is.
		return "case when jsonb_typeof(" + place + ") = '" + jsonType + "' then " +
			text + " " + operator + " " + to.sql(args) + " end"
	}, nil
}

// part is what a spec contains that has the value at the place, which an index answers. It
// is not ok for an order, for a number that JSON writes otherwise, and for a place that may
// be in a list: a list contains what any of its items does.
func (f spec) part(operator, jsonType string, to bound) (part any, ok bool) {
	inList := func(name string) bool {
		_, err := strconv.Atoi(strings.TrimSpace(name))

		return err == nil
	}

	if operator != "=" || slices.ContainsFunc(f.path, inList) {
		return nil, false
	}

	part = to.value

	if text, _ := to.value.(string); jsonType != "string" {
		if !json.Valid([]byte(text)) {
			return nil, false
		}

		part = json.RawMessage(text)
	}

	for _, name := range slices.Backward(f.path) {
		part = map[string]any{name: part}
	}

	return part, true
}

// specValue is the JSON type of a value, and the value.
func specValue(value token) (string, bound, error) {
	switch {
	case value.kind == tokenString:
		to, err := bind(kindText, value)

		return "string", to, err
	case value.kind == tokenNumber:
		to, err := bind(kindNumber, value)

		return "number", to, err
	case value.is("true"), value.is("false"):
		return "boolean", bound{kindText, strings.ToLower(value.text)}, nil
	default:
		return "", bound{}, wrong(value, "expected a string in single quotes, a number, true or false")
	}
}

func (f spec) null() node {
	return func(alias string, args *Args) string {
		return "coalesce(jsonb_typeof(" + f.expression(alias, args) + "), 'null') = 'null'"
	}
}

func (f spec) expression(alias string, args *Args) string {
	return "(" + alias + ".spec #> " + args.Add(f.path) + "::text[])"
}
