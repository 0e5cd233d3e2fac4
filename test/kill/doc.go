// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kill kills the operator's process with SIGKILL before and after calls to the hypervisor and to
// the CI platform, and checks the guarantees: no machine is left over, no machine is created twice for one
// claim, and no job is lost. If machines have addresses of a pool, the operator is also killed at its
// writes of addresses to the API server. A claim then keeps the address in its status, no other claim gets
// that address before the machine is deleted, and all addresses are free in the end.
//
// `make test` kills the operator at one call of each kind, and `make soak` at all calls. The tests find the
// calls by running each lifecycle without a kill, so that they also cover calls that are added later.
// Another test runs two operators and stops the leader.
package kill
