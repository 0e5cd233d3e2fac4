// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package search parses the fleet API's query parameters search and order, and converts them to
// SQL. Every value in the SQL is a bound argument.
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
// Keywords are case-insensitive. The fields are id, kind, name, generation, created_time,
// updated_time, deleted_time, created_by, updated_by, deleted_by, owner_references.id (or owner_id),
// owner_references.kind, labels.KEY, tenancy.KEY, spec.PATH and status.conditions.TYPE. A condition
// has the subfields status (the default if only TYPE is given), reason, message,
// observed_generation, created_time, last_updated_time and last_transition_time. Times are strings
// in RFC 3339 format, or dates. A part with other characters has to be written as a string:
// labels.'example.io/tier'.
//
// A comparison with a field that the resource does not have, or that has another type, is false.
// The operator != is the negation of =, so it is true in this case. Text is ordered by bytes.
//
// Equality on labels, tenancy and conditions becomes JSON containment, for which indexes exist.
//
// The parser is hand-written and has about 200 lines. A library for such a language
// (github.com/yaacov/tree-search-language) would replace only those lines. The list of fields and
// their types, quoted parts, containment, and errors that name the column would still have to be
// written here, and they are most of the package.
package search
