// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package search is the language of the fleet API's parameter search, and of order: text
// into SQL whose every value is a bound argument.
//
//	labels.tier = 'gold' and not (status.conditions.Reconciled = 'True' or generation in (1, 2))
//
//	search     = and { "or" and }
//	and        = not { "and" not }
//	not        = test | "not" not | "(" search ")"
//	test       = field ( "=" | "!=" | "<" | "<=" | ">" | ">=" ) value
//	           | field [ "not" ] "in" "(" value { "," value } ")", or with [ and ]
//	           | field "is" [ "not" ] "null"
//	field      = part { "." part }
//	part       = letters, digits, _ and -, not a digit or - first | string
//	value      = string | number | "true" | "false"
//	string     = "'" { any character, ' written twice } "'"
//
// Words are written in any case. Fields are id, kind, name, generation, created_time,
// updated_time, deleted_time, created_by, updated_by, deleted_by, owner_references.id (or
// owner_id) and .kind, labels.KEY, tenancy.KEY, spec.PATH, and status.conditions.TYPE with the subfields
// status (which TYPE alone means, too), reason, message, observed_generation,
// created_time, last_updated_time and last_transition_time. Times are strings of RFC 3339,
// or dates. A part with other characters is written as a string: labels.'example.io/tier'.
//
// A comparison with a field that a resource does not have, or of another type, is false,
// and != is the contrary of =: it is true then. Text is ordered by bytes.
//
// Equality on labels, tenancy and conditions becomes containment, which indexes answer.
//
// The parser is our own and some 200 lines: a library for such a language
// (github.com/yaacov/tree-search-language) would save those alone. Which fields there are
// and of what type, parts in quotes, containment, and errors that name the column would
// still be written here, and they are most of it.
package search
