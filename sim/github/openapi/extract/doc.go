// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command extract reduces GitHub's OpenAPI description to the operations that the simulator serves,
// the webhook payloads that it sends, and the components that these refer to.
//
// Usage: go run ./sim/github/openapi/extract DESCRIPTION.json LIST.txt OUT.json
//
// Each line of LIST.txt is "PATH METHOD..." or "webhook NAME"; '#' starts a comment. The
// description is generated/api.github.com.json (or ghec.json) of the npm package @octokit/openapi
// 23.0.2.
package main
