// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

// hookStarted is the line that the hook writes when a job starts.
const hookStarted = "started"

// hookVariable names the script that the runner of GitHub Actions runs before a job (its documentation: "Running scripts
// before or after a job").
const hookVariable = "ACTIONS_RUNNER_HOOK_JOB_STARTED"
