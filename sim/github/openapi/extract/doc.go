// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command extract cuts GitHub's OpenAPI description down to the operations the
// simulator serves, the webhook payloads it sends and the components both reach.
//
// Usage: go run ./sim/github/openapi/extract DESCRIPTION.json LIST.txt OUT.json
//
// LIST.txt holds "PATH METHOD...", or "webhook NAME", per line; '#' starts a comment.
// The description is generated/api.github.com.json (or ghec.json) of the npm
// package @octokit/openapi 23.0.2.
package main
