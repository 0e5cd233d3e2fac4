// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"net/http"
	"regexp"
	"strings"
)

// apiPathSegment matches path segments that belong to Buildkite's API. Other segments are names or
// ids.
var apiPathSegment = regexp.MustCompile(`^(v[0-9]+|jobs|stacks|register|scheduled-jobs|batch-reserve|get-states|finish|` +
	`notifications|job-acquisition-tokens|metrics)$`)

// OperationName returns the name of a call for the metrics: the method and the path, with names and
// ids replaced by {}.
func OperationName(r *http.Request) string {
	parts := strings.Split(r.URL.EscapedPath(), "/")
	for i, part := range parts {
		if part != "" && !apiPathSegment.MatchString(part) {
			parts[i] = "{}"
		}
	}

	return r.Method + " " + strings.Join(parts, "/")
}
