// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"testing"

	"github.com/hyperfleet/hyperfleet/test/answers"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
)

// TestAnswerThatGrowsIsRefused: 306 kB of gzip are 300 MB of JSON.
func TestAnswerThatGrowsIsRefused(t *testing.T) { answers.Bounded(t, openAt) }

// TestPlainHTTPIsRefused: credentials leave the machine encrypted, or not at all.
func TestPlainHTTPIsRefused(t *testing.T) {
	t.Parallel()
	answers.Encrypted(t, openAt)
}

func openAt(address string) (answers.Client, error) {
	return buildkite.New(buildkite.Config{Endpoint: address, Token: "a-secret-token", Organization: "acme", Queue: "q", Stack: "s"})
}
