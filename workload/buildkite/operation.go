// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"net/http"
	"regexp"
	"strings"
)

// word matches the parts of a path that are words of Buildkite's API and no names.
var word = regexp.MustCompile(`^(v[0-9]+|jobs|stacks|register|scheduled-jobs|batch-reserve|get-states|finish|notifications|` +
	`job-acquisition-tokens|metrics)$`)

// Operation names a call of this package's for the metrics: its method and the words of its
// path.
func Operation(r *http.Request) string {
	parts := strings.Split(r.URL.EscapedPath(), "/")
	for i, part := range parts {
		if part != "" && !word.MatchString(part) {
			parts[i] = "{}"
		}
	}

	return r.Method + " " + strings.Join(parts, "/")
}
