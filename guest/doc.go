// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package guest is the bootstrap service that runs inside a machine. It reads the runner's configuration
// (api/guest), installs and configures the runner, runs it for one job, reports its phases, cleans up
// and powers the machine off.
//
//	Started -> Downloading -> Configuring -> Listening -> Running -> Finished
//	   |            |              |             |           |
//	   +------------+--------------+-------------+-----------+--> Failed (with a reason)
//
// The CI platform determines which program runs the job. Each platform has its own file: the runner of
// GitHub Actions (github.go), gitlab-runner run-single (gitlab.go), buildkite-agent start --acquire-job
// (buildkite.go), forgejo-runner one-job and act_runner daemon (gitea.go), or a command of the pool
// (generic.go). The service passes secrets to these programs in environment variables. The programs of
// gitea.go read them from a file instead, which only the runner's account can read. The service derives
// the runner's state from its output and its exit code. The last report contains the job's result, if
// the runner reports one, and the end of the output.
//
// Caches from the configuration (cache.go) save time. If a cache is unavailable, the machine continues
// without it.
//
// The job runs as the same user as its runner, so the job can read the runner's credentials. None of
// them gives access to more than this machine's runner.
//
// If the configuration enables attestation, the service first runs the image's spire-agent (attest.go,
// agent.go) until the agent has the machine's SVID (identity.go). With the SVID, the service gets the
// runner's credential from the operator (callback.go) or from a secrets manager (secrets.go, vault.go).
// Only root can access the agent's directory. A job that runs as root could access it too, so the
// service stops the agent before it starts such a job. A job needs no SVID.
//
// Every machine contains this package, and untrusted jobs run next to it. The package therefore has few
// dependencies besides the standard library: go-spiffe (the workload API), Vault's client and go-tpm.
package guest
