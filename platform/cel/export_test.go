// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cel

import "slices"

// Functions returns the sorted overloads of all functions and macros that expressions can call.
func (e *Env) Functions() []string {
	var out []string

	for name, function := range e.env.Functions() {
		for _, overload := range function.OverloadDecls() {
			out = append(out, name+" "+overload.ID())
		}
	}

	for _, macro := range e.env.Macros() {
		out = append(out, macro.Function()+" macro")
	}

	slices.Sort(out)

	return slices.Compact(out)
}
