// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/test/answers"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// TestAnswerThatGrowsIsRefused: 306 kB of gzip are 300 MB of JSON.
func TestAnswerThatGrowsIsRefused(t *testing.T) { answers.Bounded(t, openAt) }

// TestPlainHTTPIsRefused: credentials leave the machine encrypted, or not at all.
func TestPlainHTTPIsRefused(t *testing.T) {
	t.Parallel()
	answers.Encrypted(t, openAt)
}

func openAt(address string) (answers.Client, error) {
	return github.New(github.Config{Settings: &github.Settings{Token: "a-secret-token", Organization: "acme", APIURL: address}})
}
