// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/workload"
)

// markPrefix begins the label by which an operator knows its own runners.
const markPrefix = "hf-op-"

// describe gives the description of a runner: its name, and the operator's mark if there
// is one among its tags. Listings tell descriptions and no tags.
func describe(name string, tags []string) string {
	at := slices.IndexFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, markPrefix) })
	if at < 0 {
		return name
	}

	return name + " (" + tags[at] + ")"
}

// readDescription gives a runner's name, and the marks that its description tells. The
// name of a runner that is not ours is its whole description.
func readDescription(text string) (name string, marks []string) {
	rest, bracketed := strings.CutSuffix(text, ")")
	at := strings.LastIndex(rest, " (")

	if !bracketed || at < 0 || !strings.HasPrefix(rest[at+2:], markPrefix) {
		return text, nil
	}

	return rest[:at], []string{rest[at+2:]}
}

// fits tells whether a runner's name can be told again from its description.
func fits(name string) bool {
	back, _ := readDescription(name)

	return name != "" && len(name) <= workload.MaxRunnerName && back == name && strings.TrimSpace(name) == name
}
