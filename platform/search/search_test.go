// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package search_test

import (
	"errors"
	"regexp"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/platform/search"
)

func TestErrorPositions(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		text     string
		column   int
		wantText string
	}{
		"nothing":                         {"", 1, "expected a field, not the end"},
		"an unknown field":                {"name='a' and nmea='b'", 14, `no field "nmea"`},
		"labels alone":                    {"labels='a'", 1, "labels.KEY"},
		"too many parts of a label":       {"labels.a.b='a'", 1, "quote a part"},
		"a field in quotes":               {"'name'='a'", 1, `no field "name"`},
		"an unknown field of a condition": {"status.conditions.A.state='x'", 21, `no field "state"`},
		"a field of a field":              {"status.conditions.A.reason.x='x'", 28, "have no fields"},
		"no operator":                     {"name 'a'", 6, "expected one of"},
		"no value":                        {"name=", 6, "not the end"},
		"double quotes":                   {`name="a"`, 6, "write text in single quotes"},
		"an unterminated string":          {"name='a", 6, "is not terminated"},
		"a number for text":               {"labels.a=5", 10, "in single quotes"},
		"text for a number":               {"generation='1'", 12, "expected a number"},
		"an unquoted string":              {"status.conditions.A=True", 21, "in single quotes"},
		"an invalid time":                 {"created_time>'yesterday'", 14, "expected a time as a string"},
		"a number for a time":             {"created_time>1", 14, "expected a time"},
		"an invalid UUID":                 {"id='x'", 4, "expected a UUID"},
		"no number":                       {"generation=-", 12, "is not a number"},
		"a number out of range":           {"generation=1e999", 12, "is not a number"},
		"a number with too many digits":   {"generation=" + strings.Repeat("1", 100), 12, "is not a number"},
		"a comparison of booleans":        {"spec.on<true", 9, "have no order"},
		"a missing parenthesis":           {"(name='a'", 10, `expected ")"`},
		"one too many":                    {"name='a')", 9, `expected "and", "or" or the end`},
		"an empty list":                   {"name in ()", 10, "in single quotes"},
		"a list without comma":            {"name in ('a' 'b')", 14, `expected ")"`},
		"not without in":                  {"name not 'a'", 10, `expected "in"`},
		"is without null":                 {"name is 'a'", 9, `expected "null"`},
		"a space after the dot":           {"labels. a='x'", 9, "right after the dot"},
		"an empty part":                   {"labels.''='x'", 8, "is empty"},
		"no part":                         {"labels.='x'", 8, "expected a field"},
		"a semicolon":                     {"name='a'; drop table resources", 9, "unexpected"},
		"columns are characters":          {"name='äöü' x", 12, `expected "and", "or"`},
		"a NUL":                           {"name='a\x00b'", 8, "NUL"},
		"invalid UTF-8":                   {"name='\xff'", 1, "not UTF-8"},
		"too long":                        {"name='" + strings.Repeat("a", 4096) + "'", 1, "longer than 4096"},
		"too deep":                        {strings.Repeat("(", 1000), 51, "nested deeper than 50"},
		"too deep with not":               {strings.Repeat("not ", 60) + "name='a'", 201, "nested deeper than 50"},
		"too many values":                 {"generation in (" + strings.Repeat("1,", 600) + "1)", 1016, "more than 500"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := search.Parse(tc.text)

			var wrong *search.Error
			if !errors.As(err, &wrong) {
				t.Fatalf("error %v, want one with a column", err)
			}

			if wrong.Column != tc.column || !strings.Contains(wrong.Message, tc.wantText) {
				t.Errorf("column %d: %s\nwant column %d: ...%s...", wrong.Column, wrong.Message, tc.column, tc.wantText)
			}
		})
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		text, want string
		column     int
	}{
		"default":              {text: " ", want: "r.created_time desc, r.id desc"},
		"a field":              {text: "name", want: `r.name collate "C" asc, r.id asc`},
		"several":              {text: "kind DESC, generation asc", want: `r.kind collate "C" desc, r.generation asc, r.id asc`},
		"by id":                {text: "id desc", want: "r.id desc"},
		"deleted last":         {text: "deleted_time desc", want: "r.deleted_time desc nulls last, r.id desc"},
		"unknown":              {text: "name, size", column: 7},
		"a label":              {text: "labels.a", column: 1},
		"a duplicate field":    {text: "name, name desc", column: 7},
		"an unknown direction": {text: "name up", column: 6},
		"trailing comma":       {text: "name,", column: 6},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := search.ParseOrder(tc.text)

			var wrong *search.Error
			if found := errors.As(err, &wrong); found != (tc.column != 0) || (wrong != nil && wrong.Column != tc.column) {
				t.Fatalf("error %v, want one at column %d", err, tc.column)
			}

			if got != tc.want {
				t.Errorf("order %s, want %s", got, tc.want)
			}
		})
	}
}

// generatedSQL matches SQL that consists only of the text that this package writes.
var generatedSQL = regexp.MustCompile(`^(?:\$\d+|::(?:text\[\]|text|jsonb|numeric|timestamptz|uuid)|[()=<>, ]|#>>|#>|->>|->|@>|'\{\}'|''|` +
	`'(?:string|number|boolean|null)'|"C"|` +
	`r\.(?:id|kind|name|generation|created_time|updated_time|deleted_time|created_by|updated_by|deleted_by|owner_id|owner_kind|` +
	`labels|tenancy|spec|conditions)\b|` +
	`\b(?:and|or|is|not|true|null|case|when|then|end|collate|jsonb_typeof|coalesce|nullif)\b)*$`)

func TestGeneratedSQLMatcher(t *testing.T) {
	t.Parallel()

	if generatedSQL.MatchString("(r.name = 'x')") || generatedSQL.MatchString("r.name = $1; drop") {
		t.Error("the matcher accepts other SQL")
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`labels.tier='gold' and status.conditions.Reconciled='False'`, `not (name in ('a','b') or generation>=2)`,
		`spec.a.b != true`, `labels.'x.y/z' is not null`, `created_time < '2026-01-01'`, `name='it''s'`, `((((`, `spec.'''' = ''''`,
		"tenancy.a <= '\u00e4'", `status.conditions.A.observed_generation = 1e3`, `name='$1 or 1=1 --'`,
	} {
		f.Add(seed)
	}

	f.Fuzz(func(t *testing.T, text string) {
		condition, err := search.Parse(text)

		var wrong *search.Error
		if err != nil {
			if !errors.As(err, &wrong) || wrong.Column < 1 || wrong.Column > len(text)+1 {
				t.Fatalf("%q: error %v, want one with a column in the text", text, err)
			}

			return
		}

		args := &search.Args{}
		if sql := condition.SQL(args); !generatedSQL.MatchString(sql) {
			t.Errorf("%q: SQL %s contains a part of the text", text, sql)
		}
	})
}

func FuzzOrder(f *testing.F) {
	f.Add("name asc, created_time desc")
	f.Add("deleted_time,id")
	f.Fuzz(func(t *testing.T, text string) {
		order, err := search.ParseOrder(text)
		if err == nil && !regexp.MustCompile(`^(?:r\.\w+(?: collate "C")? (?:asc|desc)(?: nulls last)?(?:, |$))+$`).MatchString(order) {
			t.Errorf("%q: order %s", text, order)
		}
	})
}
