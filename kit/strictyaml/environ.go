// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package strictyaml

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
)

// EnvPrefix is the prefix of every variable that sets a key.
const EnvPrefix = "HYPERFLEET_"

// serviceLink matches the variables that Kubernetes sets in pods for each Service of a namespace.
// For a Service named hyperfleet-x, these variables start with EnvPrefix.
var serviceLink = regexp.MustCompile(
	`_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)$`)

// environ returns the environment variables by name.
func (s *Spec[T]) environ() map[string]string {
	list := os.Environ
	if s.Environ != nil {
		list = s.Environ
	}

	environ := map[string]string{}

	for _, entry := range list() {
		if name, value, ok := strings.Cut(entry, "="); ok {
			environ[name] = value
		}
	}

	return environ
}

// findUnknownVariables returns a problem for each variable with EnvPrefix that sets no key.
func (s *Spec[T]) findUnknownVariables(leaves []leaf, environ map[string]string) Problems {
	if !s.OwnsPrefix {
		return nil
	}

	known := append(slices.Clone(s.ForeignEnv), s.EnvFile)
	for _, l := range leaves {
		known = append(known, l.env)
	}

	var problems Problems

	for _, name := range slices.Sorted(maps.Keys(environ)) {
		if !strings.HasPrefix(name, EnvPrefix) || slices.Contains(known, name) || serviceLink.MatchString(name) {
			continue
		}

		problems = append(problems, Problem{File: "env " + name, Message: "unknown variable", Hint: SuggestName(name, known)})
	}

	return problems
}
