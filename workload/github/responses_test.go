// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/test/answers"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// TestAnswerThatGrowsIsRefused sends 306 kB of gzip that decompress to 300 MB of JSON.
func TestAnswerThatGrowsIsRefused(t *testing.T) { answers.CheckResponseLimit(t, openAnswers) }

// TestPlainHTTPIsRefused checks that credentials are never sent unencrypted.
func TestPlainHTTPIsRefused(t *testing.T) {
	t.Parallel()
	answers.CheckEncryption(t, openAnswers)
}

// TestErrorsWithStatus200 checks that a response with an error in it is no empty list.
func TestErrorsWithStatus200(t *testing.T) {
	t.Parallel()
	answers.CheckErrorAnswers(t, openAnswers, "one", "7")
}

func openAnswers(address string) (answers.Client, error) {
	return github.New(github.Config{Settings: &github.Settings{Token: "a-secret-token", Organization: "acme", APIURL: address}})
}
