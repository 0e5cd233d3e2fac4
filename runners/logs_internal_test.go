// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runners

import (
	"testing"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

// With runners.logs.keepIn nowhere, no part of the area keeps or finds logs.
func TestLogsAreKeptNowhere(t *testing.T) {
	t.Parallel()

	area := &Area{Config: config.Runners{Logs: config.RunnerLogs{KeepIn: config.LogsNowhere}}}
	if logs, finder, consoles := area.newLogs(nil), area.newLogFinder(nil), area.newConsoleLogs(nil); logs != nil || finder != nil || consoles != nil {
		t.Errorf("logs %v, finder %v, consoles %v, want none", logs, finder, consoles)
	}
}
