// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package scale simulates an hour with many jobs, to find out how many one leader can handle.
//
// The operator's area runners is the real code, with its manager, caches and queues. It runs on the simulated clock of
// testing/synctest, on which an hour without work takes no time. The API server, the hypervisor, the CI platform and the
// machines are models in the same process. The clock stops while code runs. So each call to the API server also
// waits for the processor time that the operator has used since the previous call, as if the operator had one processor.
// If the operator needs more than that, its work comes later and later.
//
//	GOMAXPROCS=1 SCALE_JOBS=50000 SCALE_POOLS=10 go test -v -run TestSimulatedJobs ./test/scale
//
// What the simulation leaves out: the calls to the hypervisor and to the CI platform with their connections, TLS between the
// operator and the API server, and the validation of objects.
package scale
