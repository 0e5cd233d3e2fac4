// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"net/http"
	"regexp"
	"strings"
)

// objectPattern matches the path segments that identify objects.
var objectPattern = regexp.MustCompile(
	`/(orgs|enterprises|runners|jobs|runs|installations|hooks|deliveries|runnerscalesets|sessions|message)/[^/]+`)

// repositoryPattern matches the two path segments that identify a repository.
var repositoryPattern = regexp.MustCompile(`/repos/[^/]+/[^/]+`)

// servicePattern matches the part of a URL of GitHub's Actions service that identifies a tenant.
var servicePattern = regexp.MustCompile(`^.*/_apis/`)

// OperationName returns the name of a call for the metrics: the method and the path, with the names
// of objects replaced by placeholders.
func OperationName(r *http.Request) string {
	path := repositoryPattern.ReplaceAllString(servicePattern.ReplaceAllString(r.URL.Path, "/_apis/"), "/repos/{owner}/{repo}")
	path = objectPattern.ReplaceAllStringFunc(path, func(match string) string {
		kind, last, _ := strings.Cut(match[1:], "/")
		if kind == "runners" && (last == "generate-jitconfig" || last == "registration-token" || last == "remove-token") {
			return match
		}

		return "/" + kind + "/{}"
	})

	return r.Method + " " + path
}
