// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package task

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/platform/cel"
)

// Path leads from a variable to a value in it: event.id, env.REGION, cluster.spec.tier.
type Path struct {
	// Variable is the first part.
	Variable string
	// Rest is what follows; empty for the variable itself.
	Rest string
}

func parsePath(text string) Path {
	variable, rest, _ := strings.Cut(text, ".")

	return Path{Variable: variable, Rest: rest}
}

// String is the path as it is written.
func (p Path) String() string {
	if p.Rest == "" {
		return p.Variable
	}

	return p.Variable + "." + p.Rest
}

// Lookup is the value in vars; ok is false where there is none, or it is null.
func (p Path) Lookup(vars map[string]any) (value any, ok bool) {
	value = vars[p.Variable]
	if p.Rest != "" {
		value = cel.Dig(value, p.Rest)
	}

	return value, value != nil
}

// Types of params.
func paramTypes() []string { return []string{"string", "int", "int64", "float", "float64", "bool"} }

// Convert makes a value of a param's type out of a text; values that are not texts, and
// the type "", stay as they are. Its error does not hold the value.
func Convert(value any, kind string) (any, error) {
	text, ok := value.(string)
	if !ok {
		return value, nil
	}

	var (
		out any
		err error
	)

	switch kind {
	case "int", "int64":
		out, err = strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	case "float", "float64":
		out, err = strconv.ParseFloat(strings.TrimSpace(text), 64)
	case "bool":
		out, err = strconv.ParseBool(strings.TrimSpace(text))
	default:
		out = text
	}

	if err != nil {
		wanted := map[string]string{"bool": "true or false", "float": "a number", "float64": "a number"}

		return nil, fmt.Errorf("the value can't be converted: want a text that is %s", cmp.Or(wanted[kind], "a whole number"))
	}

	return out, nil
}
