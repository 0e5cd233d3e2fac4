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

func openAnswers(address string) (answers.Client, error) {
	return buildkite.New(buildkite.Config{Endpoint: address, Token: "a-secret-token", Organization: "acme", Queue: "q", Stack: "s"})
}
