// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package chaos queues jobs while disturbances of many kinds start and end at random times, several at once.
// It checks invariants against the state of the simulators:
//
//   - every job runs to its end exactly once, unless its machine was killed
//   - no claim has two machines, and nothing is left when the disturbances have ended
//   - no machine exists without its claim: the claim is deleted only after its machine
//   - the number of attempts is limited
//   - in the end, statuses agree with the simulators: how each job has ended, that no machine is
//     left, and that all nodes are online
//   - the VMs of others have not changed
//
// The clock runs sixty times as fast as the real clock, so that a disturbance can last for an hour. It is the
// clock of the operator and its queues, the hypervisor, the CI platform and the machines, and of the creation
// timestamps from the API server. The API server is real, and calls take their real time.
//
// The seed reproduces the disturbances: CHAOS_SEED=7 CHAOS_TIME=10h make chaos. The order in which goroutines
// run still differs from run to run.
package chaos
