// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"net/http"
	"regexp"
	"strings"
)

// objects matches the parts of a path that name objects.
var objects = regexp.MustCompile(
	`/(orgs|enterprises|runners|jobs|runs|installations|hooks|deliveries|runnerscalesets|sessions|message)/[^/]+`)

// anyRepository matches the two that name a repository.
var anyRepository = regexp.MustCompile(`/repos/[^/]+/[^/]+`)

// anyService matches what is before the calls of GitHub's Actions service: whose it is.
var anyService = regexp.MustCompile(`^.*/_apis/`)

// Operation names a call of this package's for the metrics: its method and its path, without
// the names of objects.
func Operation(r *http.Request) string {
	path := anyRepository.ReplaceAllString(anyService.ReplaceAllString(r.URL.Path, "/_apis/"), "/repos/{owner}/{repo}")
	path = objects.ReplaceAllStringFunc(path, func(match string) string {
		kind, last, _ := strings.Cut(match[1:], "/")
		if kind == "runners" && (last == "generate-jitconfig" || last == "registration-token" || last == "remove-token") {
			return match
		}

		return "/" + kind + "/{}"
	})

	return r.Method + " " + path
}
