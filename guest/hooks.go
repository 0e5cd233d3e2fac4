// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"slices"
	"strings"
)

// hookStarted is the line that the hook writes when a job starts.
const hookStarted = "started"

// hookVariable names the script that the runner of GitHub Actions runs before a job (its documentation: "Running scripts
// before or after a job").
const hookVariable = "ACTIONS_RUNNER_HOOK_JOB_STARTED"

// hasUserHook reports whether the user has named a hook in the machine's environment. The runner runs only one, so the
// service then adds none. The start of a job is visible in the runner's output too.
func (s *Service) hasUserHook() bool {
	return slices.ContainsFunc(s.environment, func(variable string) bool {
		name, value, _ := strings.Cut(variable, "=")

		return foldVariable(name) == hookVariable && value != ""
	})
}
