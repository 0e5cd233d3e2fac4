// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac_test

import (
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hosts/plan/mac"
	"github.com/hyperfleet/hyperfleet/hosts/plan/plantest"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Each step is a complete script. Only an installation gets the password, which is not part of the
// script's text.
func TestAskMacOS(t *testing.T) {
	t.Parallel()

	for _, step := range []string{"version", "offer", "install", "cancel"} {
		part := mac.NewOSStep(mac.OSStepParams{
			Step: step, Version: "15.3.1", Label: "macOS 'Sequoia'", Attempt: "1", User: "m1", Password: log.NewSecret("correct horse"),
		})

		plantest.Lint(t, part.Label, part.Apply)

		if sent := strings.Contains(part.Input(), "correct horse"); sent != (step == "install") || strings.Contains(part.Apply, "correct horse") {
			t.Errorf("%s: password in the input: %t", part.Label, sent)
		}
	}
}
