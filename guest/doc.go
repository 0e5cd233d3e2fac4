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
// The package uses the standard library alone: it travels into every machine, and jobs
// that nobody trusts run beside it.
package guest
