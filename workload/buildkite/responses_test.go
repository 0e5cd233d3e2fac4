// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/test/answers"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
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
	answers.CheckErrorAnswers(t, openAnswers, "018f6d4e-0000-4000-8000-000000000000", "018f6d4e-0000-4000-8000-000000000000")
}

func openAnswers(address string) (answers.Client, error) {
	return buildkite.New(buildkite.Config{Endpoint: address, Token: "a-secret-token", Organization: "acme", Queue: "q", Stack: "s"})
}
