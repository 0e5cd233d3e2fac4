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

type field interface {
	// compare returns the comparison of the field with a value. It returns an error if the value
	// does not have the field's type.
	compare(operator string, value token) (node, error)
	// testNull returns a test that is true for resources without the field.
	testNull() node
}

// findField returns the field that the parts name. The first part has to be a word that this
// package knows, and must not be quoted.
func findField(first token, parts []token) (field, error) {
	names := make([]string, 0, len(parts))
	for _, part := range parts {
		names = append(names, part.text)
	}

	if first.kind == tokenWord {
		if found := findColumn(strings.Join(names, ".")); found != nil {
			return found, nil
		}

		switch {
		case (names[0] == "labels" || names[0] == "tenancy") && len(names) == 2:
			return newKeyField(names[0], names[1]), nil
		case names[0] == "spec" && len(names) > 1:
			return specField{path: names[1:]}, nil
		case names[0] == "status" && len(names) > 2 && names[1] == "conditions":
			return newConditionField(parts[2:])
		}
	}

	return nil, &Error{Column: first.column, Message: fmt.Sprintf("no field %.80q: the fields are id, kind, name, generation, "+
		"created_time, updated_time, deleted_time, created_by, updated_by, deleted_by, owner_references.id, "+
		"owner_references.kind, labels.KEY, tenancy.KEY, spec.PATH and status.conditions.TYPE; quote a part that has other characters "+
		"than letters, digits, _ and -", strings.Join(names, "."))}
}

// findColumn returns a field that has its own column. It returns nil if the name is not such a
// field.
func findColumn(name string) field {
	newColumn := func(column string, kind valueKind) field {
		return columnField{kind: kind, expression: func(*Args) string { return "r." + column }}
	}

	switch name {
	case "id":
		return newColumn("id", kindID)
	case "owner_references.id", "owner_id":
		return newColumn("owner_id", kindID)
	case "owner_references.kind":
		return newColumn("owner_kind", kindText)
	case "kind", "name":
		return newColumn(name, kindText)
	case "created_by", "updated_by", "deleted_by":
		// The column is an empty string if the resource does not have the field.
		return columnField{kind: kindText, expression: func(*Args) string {
			return "nullif(r." + name + ", '')"
		}}
	case "generation":
		return newColumn(name, kindNumber)
	case "created_time", "updated_time", "deleted_time":
		return newColumn(name, kindTime)
	default:
		return nil
	}
}

// newKeyField returns the field for one key of a JSON column that has strings by key.
func newKeyField(column, key string) field {
	return columnField{
		kind: kindText,
		expression: func(args *Args) string {
			return "(r." + column + " ->> " + args.Add(key) + "::text)"
		},
		column: column, document: func(value any) any { return map[string]any{key: value} },
	}
}

// valueKind is the type of a field: the SQL cast that converts an argument to it.
type valueKind string

const (
	kindText   valueKind = "::text"
	kindNumber valueKind = "::text::numeric"
	kindTime   valueKind = "::timestamptz"
	kindID     valueKind = "::uuid"
)

// typedValue is a value that has been validated for its kind.
type typedValue struct {
	kind  valueKind
	value any
}

// addTo adds the value to the arguments, and returns its placeholder with a cast.
func (b typedValue) addTo(args *Args) string { return args.Add(b.value) + string(b.kind) }

func convertValue(kind valueKind, value token) (typedValue, error) {
	switch kind {
	case kindNumber:
		number, err := parseNumber(value)

		return typedValue{kind, number}, err
	case kindTime:
		parsed, err := parseTime(value)

		return typedValue{kind, parsed}, err
	case kindID:
		parsed, err := uuid.Parse(value.text)
		if value.kind != tokenString || err != nil || len(value.text) != len(uuid.Nil.String()) {
			return typedValue{}, newTokenError(value, "expected a UUID as a string")
		}

		return typedValue{kind, parsed.String()}, nil
	default:
		if value.kind != tokenString {
			return typedValue{}, newTokenError(value, "expected text as a string, in single quotes")
		}

		return typedValue{kind, value.text}, nil
	}
}

// parseNumber returns the number as it is written, if a double can hold a number of that size. It rejects all other
// numbers, because with them a client could exhaust the memory of the database through PostgreSQL's numeric type.
func parseNumber(value token) (string, error) {
	if value.kind != tokenNumber {
		return "", newTokenError(value, "expected a number")
	}

	number, err := strconv.ParseFloat(value.text, 64)
	if err != nil || math.IsInf(number, 0) || len(value.text) > 64 {
		return "", &Error{Column: value.column, Message: fmt.Sprintf("%.40q is not a number", value.text)}
	}

	return value.text, nil
}

func parseTime(value token) (time.Time, error) {
	for _, layout := range []string{time.RFC3339Nano, time.DateOnly} {
		if parsed, err := time.Parse(layout, value.text); err == nil && value.kind == tokenString {
			return parsed.UTC().Truncate(time.Microsecond), nil
		}
	}

	return time.Time{}, newTokenError(value, "expected a time as a string, '2006-01-02T15:04:05Z' or '2006-01-02'")
}

// addCollation returns the expression to compare by. Text is compared by bytes unless the operator
// is =.
func addCollation(expression string, kind valueKind, operator string) string {
	if kind == kindText && operator != "=" {
		return expression + ` collate "C"`
	}

	return expression
}

type columnField struct {
	kind valueKind
	// expression returns the SQL for the value of the field.
	expression func(args *Args) string
	// column is a JSON column, or empty. If it is set, a search for an equal value tests whether the column
	// contains the JSON that document returns for the value, because the column has an index for this test.
	column   string
	document func(value any) any
}

func (f columnField) compare(operator string, value token) (node, error) {
	operand, err := convertValue(f.kind, value)
	if err != nil {
		return nil, err
	}

	return func(args *Args) string {
		if operator == "=" && f.column != "" {
			return formatContains("r."+f.column, f.document(operand.value), args)
		}

		return addCollation(f.expression(args), f.kind, operator) + " " + operator + " " + operand.addTo(args)
	}, nil
}

func (f columnField) testNull() node {
	return func(args *Args) string { return f.expression(args) + " is null" }
}

// formatContains returns a containment test. The indexes on JSON columns support it.
func formatContains(column string, part any, args *Args) string {
	encoded, err := json.Marshal(part)
	if err != nil {
		// This cannot happen: maps of strings and valid numbers can be encoded.
		return "false"
	}

	return column + " @> " + args.Add(string(encoded)) + "::text::jsonb"
}

// newConditionField returns the field for status.conditions.TYPE, with or without a subfield.
func newConditionField(parts []token) (field, error) {
	conditionType, subfield := parts[0].text, "status"
	if len(parts) > 1 {
		subfield = parts[1].text
	}

	switch {
	case len(parts) > 2:
		return nil, &Error{Column: parts[2].column, Message: "fields of a condition have no fields"}
	case subfield == "status", subfield == "reason", subfield == "message":
		return columnField{
			kind: kindText, expression: formatConditionPath(conditionType, subfield, ""),
			column: "conditions", document: func(value any) any {
				return map[string]any{conditionType: map[string]any{subfield: value}}
			},
		}, nil
	case subfield == "observed_generation":
		return columnField{kind: kindNumber, expression: formatConditionPath(conditionType, subfield, "::numeric")}, nil
	case subfield == "created_time", subfield == "last_transition_time":
		return columnField{kind: kindTime, expression: formatConditionPath(conditionType, subfield, "::timestamptz")}, nil
	case subfield == "last_updated_time":
		// A report that repeats the previous one only updates the column reported.
		return columnField{kind: kindTime, expression: func(args *Args) string {
			conditionType := args.Add(conditionType) + "::text"

			return "greatest((r.conditions -> " + conditionType + " ->> " + args.Add(subfield) + "::text)::timestamptz, (" +
				"r.reported ->> " + conditionType + ")::timestamptz)"
		}}, nil
	default:
		return nil, &Error{Column: parts[1].column, Message: fmt.Sprintf(
			"a condition has no field %.40q: the fields are status, reason, "+
				"message, observed_generation, created_time, last_updated_time and last_transition_time", subfield)}
	}
}

// formatConditionPath returns the SQL for a field of a condition, with a cast.
func formatConditionPath(conditionType, subfield, cast string) func(args *Args) string {
	return func(args *Args) string {
		return "(r.conditions -> " + args.Add(conditionType) + "::text ->> " + args.Add(subfield) + "::text)" + cast
	}
}

// specField is a path in the spec. Its type depends on the resource.
type specField struct {
	path []string
}

// compare returns a condition that compares the value at the path with value. A value of another JSON type meets no
// condition, except that text also equals the number or boolean that it is the text of, as in upstream's searches.
func (f specField) compare(operator string, value token) (node, error) {
	parts := []node{}

	for _, alternative := range f.alternatives(operator, value) {
		part, err := f.compareTyped(operator, alternative)
		if err != nil {
			return nil, err
		}

		parts = append(parts, part)
	}

	return joinNodes("or", parts), nil
}

// alternatives returns the value, and for text the number or boolean that is written in it.
func (f specField) alternatives(operator string, value token) []token {
	out := []token{value}
	if operator != "=" || value.kind != tokenString {
		return out
	}

	word, number := value, value
	word.kind, number.kind = tokenWord, tokenNumber

	if value.text == "true" || value.text == "false" {
		out = append(out, word)
	} else if _, err := parseNumber(number); err == nil && json.Valid([]byte(value.text)) {
		out = append(out, number)
	}

	return out
}

// compareTyped compares a value of one JSON type. For = it uses the index of the spec where document supports this.
func (f specField) compareTyped(operator string, value token) (node, error) {
	jsonType, operand, err := parseSpecValue(value)
	if err != nil {
		return nil, err
	}

	if jsonType == "boolean" && operator != "=" {
		return nil, &Error{Column: value.column, Message: "true and false have no order: use = or !="}
	}

	if part, ok := f.document(operator, jsonType, operand); ok {
		return func(args *Args) string { return formatContains("r.spec", part, args) }, nil
	}

	return func(args *Args) string {
		place := f.formatPath(args)
		text := "(" + place + " #>> '{}')"

		switch jsonType {
		case "number":
			text += "::numeric"
		case "string":
			text = addCollation(text, kindText, operator)
		}

		// SQL defines the order of evaluation for case, but not for and.
		return "case when jsonb_typeof(" + place + ") = '" + jsonType + "' then " +
			text + " " + operator + " " + operand.addTo(args) + " end"
	}, nil
}

// document returns the JSON that a spec contains if it has the value at the path. Indexes support this test. ok
// is false for any other operator than =, for a number that is not valid JSON, and for a path that may point
// into a list, because a list contains a value if any of its items does.
func (f specField) document(operator, jsonType string, operand typedValue) (part any, ok bool) {
	isListIndex := func(name string) bool {
		_, err := strconv.Atoi(strings.TrimSpace(name))

		return err == nil
	}

	if operator != "=" || slices.ContainsFunc(f.path, isListIndex) {
		return nil, false
	}

	part = operand.value

	if text, _ := operand.value.(string); jsonType != "string" {
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

// parseSpecValue returns the JSON type of a value, and the value.
func parseSpecValue(value token) (jsonType string, parsed typedValue, err error) {
	switch {
	case value.kind == tokenString:
		operand, err := convertValue(kindText, value)

		return "string", operand, err
	case value.kind == tokenNumber:
		operand, err := convertValue(kindNumber, value)

		return "number", operand, err
	case value.is("true"), value.is("false"):
		return "boolean", typedValue{kindText, strings.ToLower(value.text)}, nil
	default:
		return "", typedValue{}, newTokenError(value, "expected a string in single quotes, a number, true or false")
	}
}

func (f specField) testNull() node {
	return func(args *Args) string {
		return "coalesce(jsonb_typeof(" + f.formatPath(args) + "), 'null') = 'null'"
	}
}

func (f specField) formatPath(args *Args) string {
	return "(r.spec #> " + args.Add(f.path) + "::text[])"
}
