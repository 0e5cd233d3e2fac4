// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import "reflect"

// ParseText reads a value of a type as variables and flags have it: a text, bool, number,
// time.Duration, []string (a,b) or map[string]string (k=v,k2=v2). Whole numbers come as
// int64 that fits the type, others as float64.
func ParseText(kind reflect.Type, text string) (any, error) { return leaf{kind: kind}.fromText(text) }

// Wants says in words what values of a type look like.
func Wants(kind reflect.Type) string { return leaf{kind: kind}.wants() }

// Settable says whether a value of the type can be written as one text.
func Settable(kind reflect.Type) bool { return isLeaf(kind) }

// Nearest returns "did you mean X?" for the known name that is closest to name, or nothing
// when none is close.
func Nearest(name string, known []string) string {
	if best := closest(name, known); best != "" {
		return "did you mean " + best + "?"
	}

	return ""
}
