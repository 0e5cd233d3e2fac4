// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cel is the one place where expressions are compiled and evaluated: gates and
// params of adapters, decisions of Sentinel, mapped conditions of the API.
//
// An expression is parsed and type-checked against declared variables and the functions
// below when it is loaded; an unknown name is an error then. When it is evaluated it is
// limited in cost, in time and in the size of what each function makes, and reaches nothing but its variables: no network, no
// files, no environment, no clock but the one it was given. An error of an evaluation
// says what went wrong and where in the expression, but never holds a value, which may be
// a secret.
//
// Besides CEL's standard library (https://github.com/google/cel-spec), optionals
// (m.?field, hasValue, orValue), and the extensions for strings and lists:
//
//	now()                          the time, as an RFC 3339 text
//	timestamp(t).toUnixTime()      seconds since 1970
//	toJson(v)                      JSON, with sorted keys
//	dig(v, "a.b.c")                what is there, or null; keys may have dots in them:
//	                               dig(o, "metadata.annotations.example.io/status")
//	dig(v, "a.b.c", x)             what is there, or x
//	conditionStatus(list, type)    status of the condition, "Unknown" where it is absent
//	conditionAge(list, type)       seconds since its last transition, -1 where it is absent
//	stableFor(list, type, sec)     true if it is "True" for that long
//	statusFeedbackValue(f, name)   value of a ManifestWork's status feedback as a text,
//	                               "" where it is absent
//	triState(t, f)                 "True" if t, else "False" if f, else "Unknown"
package cel
