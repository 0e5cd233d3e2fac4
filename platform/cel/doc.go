// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cel compiles and evaluates all CEL expressions: gates and params of adapters,
// decisions of Sentinel, and mapped conditions of the API.
//
// Compile parses an expression and checks its types against the declared variables and the
// functions below, so that an unknown name is an error when the expression is loaded. An
// evaluation has limits on its cost, on its time and on the size of each function's result. It
// can read its variables and the configured clock, but not the network, files or the environment.
// The error of an evaluation says what failed and where in the expression. It never contains a
// value, because a value may be a secret.
//
// Expressions can use CEL's standard library (https://github.com/google/cel-spec), optionals
// (m.?field, hasValue, orValue), the extensions for strings and lists, Kubernetes' library of
// quantities (quantity, isQuantity), and these functions:
//
//	now()                          the current time as an RFC 3339 string
//	timestamp(t).toUnixTime()      seconds since 1970
//	toJson(v)                      JSON with sorted keys
//	dig(v, "a.b.c")                the value at the path, or null; keys may contain dots:
//	                               dig(o, "metadata.annotations.example.io/status")
//	dig(v, "a.b.c", x)             the value at the path, or x
//	conditionStatus(list, type)    status of the condition, or "Unknown" if it is absent
//	conditionAge(list, type)       seconds since the condition's last transition, or -1 if the
//	                               condition is absent
//	stableFor(list, type, sec)     true if the condition has been "True" for at least sec seconds
//	statusFeedbackValue(f, name)   value of a ManifestWork's status feedback as a string,
//	                               or "" if it is absent
//	triState(t, f)                 "True" if t, else "False" if f, else "Unknown"
package cel
