// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"slices"
	"strings"

	"github.com/hyperfleet/hyperfleet/workload"
)

// ownerLabelPrefix is the prefix of the label that identifies the operator that created a runner.
const ownerLabelPrefix = "hf-op-"

// formatDescription returns the description of a runner: its name, and the ownership label if its
// tags contain one. GitLab's runner lists contain descriptions but no tags.
func formatDescription(name string, tags []string) string {
	i := slices.IndexFunc(tags, func(tag string) bool { return strings.HasPrefix(tag, ownerLabelPrefix) })
	if i < 0 {
		return name
	}

	return name + " (" + tags[i] + ")"
}

// parseDescription returns a runner's name and the ownership labels in its description. If the
// description contains no ownership label, the name is the whole description.
func parseDescription(text string) (name string, ownerLabels []string) {
	rest, hasParenthesis := strings.CutSuffix(text, ")")
	i := strings.LastIndex(rest, " (")

	if !hasParenthesis || i < 0 || !strings.HasPrefix(rest[i+2:], ownerLabelPrefix) {
		return text, nil
	}

	return rest[:i], []string{rest[i+2:]}
}

// isValidRunnerName reports whether a name can be parsed from the description that contains it.
func isValidRunnerName(name string) bool {
	parsed, _ := parseDescription(name)

	return name != "" && len(name) <= workload.MaxRunnerNameLength && parsed == name && strings.TrimSpace(name) == name
}
