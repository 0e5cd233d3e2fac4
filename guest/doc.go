// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest is the bootstrap service that runs inside a machine: it reads the
// runner's configuration (api/guest), gets the runner, configures it, runs it for one
// job, reports its phases, cleans up and powers the machine off.
//
//	Started -> Downloading -> Configuring -> Listening -> Running -> Finished
//	   |            |              |             |           |
//	   +------------+--------------+-------------+-----------+--> Failed (with a reason)
//
// What runs the job depends on the CI platform, one file each: the runner of GitHub
// Actions (github.go), gitlab-runner run-single (gitlab.go), buildkite-agent start
// --acquire-job (buildkite.go), forgejo-runner one-job and act_runner daemon (gitea.go), or
// a command of the pool (generic.go). Each gets its secrets by environment, or those of
// gitea.go by a file of its account's alone, and tells by its output and its exit code how it
// fares. The last report says how the job went, as far as the runner tells, and has the end
// of the output.
//
// Caches that the configuration names (cache.go) save time, and no machine ends for want of one.
//
// The job runs as the same user as its runner, and so can read what the runner was given.
// Nothing there is worth more than this one machine's runner.
//
// Where the configuration has the machine attest, it first runs the image's spire-agent
// (attest.go, agent.go) until that has the machine's SVID (identity.go); with the SVID it
// asks the operator (callback.go) or a secrets manager (secrets.go, vault.go) for the
// runner's credential. The agent's folder is root's alone. A job that runs as root would get
// at it, and so the agent ends before such a job begins; a job needs no SVID.
//
// The package travels into every machine, and jobs that nobody trusts run beside it: beside
// the standard library it uses go-spiffe (the Workload API), Vault's client and go-tpm.
package guest
