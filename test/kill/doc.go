// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kill ends the operator's process with SIGKILL at every boundary of a call to
// the hypervisor and to the CI platform, and holds what is promised of that: no machine
// leaks, none is made twice for one claim, and no job is lost. Where machines have addresses
// of a pool it is killed at what it writes to the API server of them as well: a claim keeps
// the address that is on record, no other one has it before its machine is gone, and all are
// free in the end.
//
// `make test` kills it at a call of each kind, `make soak` at all of them: what they are is not
// written down here, undisturbed lives show it, so that a call that is added is killed at as
// well. Another test has two operators, and takes away the one
// that leads.
package kill
