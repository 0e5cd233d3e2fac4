// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos lets troubles of every kind come, stay for a while and go, all at once and by
// chance, while jobs are queued, and holds what must be true whatever happens against what
// the simulators know:
//
//   - every job runs to its end, once, unless its machine was killed
//   - no claim has two machines, and nothing is left when the troubles are over
//   - a machine is there for as long as its claim is, or somebody said otherwise: a claim is
//     not gone before its machine
//   - tries are bounded
//   - when all is over, statuses say what the simulators know: how each job ended, that no
//     machine is left, and that all nodes are there
//   - what is not ours is as it was
//
// The clock of all this runs sixty times as fast as the real one, for the operator and its queues,
// the hypervisor, the forge, the machines, and what the API server says of when objects were made:
// a trouble may stay for an hour. It is the real API server, and calls take their real time.
//
// The seed makes the same troubles again: CHAOS_SEED=7 CHAOS_TIME=10h make chaos. What the
// schedule of goroutines does with them differs from run to run.
package chaos
