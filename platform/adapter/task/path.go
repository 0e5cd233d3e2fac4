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
	// Rest is the path after the variable. It is empty for the variable itself.
	Rest string
}

func parsePath(text string) Path {
	variable, rest, _ := strings.Cut(text, ".")

	return Path{Variable: variable, Rest: rest}
}

// String returns the path with dots.
func (p Path) String() string {
	if p.Rest == "" {
		return p.Variable
	}

	return p.Variable + "." + p.Rest
}

// Lookup returns the value at the path in vars, and false if the value is absent or null.
func (p Path) Lookup(vars map[string]any) (value any, ok bool) {
	value = vars[p.Variable]
	if p.Rest != "" {
		value = cel.Dig(value, p.Rest)
	}

	return value, value != nil
}

func paramTypes() []string { return []string{"string", "int", "int64", "float", "float64", "bool"} }

// Convert converts a string to the type of a param. It returns values that are not strings
// unchanged, and also strings if the type is "". Its error does not contain the value.
func Convert(value any, paramType string) (any, error) {
	text, ok := value.(string)
	if !ok {
		return value, nil
	}

	var (
		out any
		err error
	)

	switch paramType {
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
		formats := map[string]string{"bool": "true or false", "float": "a number", "float64": "a number"}

		return nil, fmt.Errorf("the value can't be converted: want a string that is %s", cmp.Or(formats[paramType], "a whole number"))
	}

	return out, nil
}
