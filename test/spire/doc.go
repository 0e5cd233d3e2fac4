// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spire gives tests a real SPIRE server and real SPIRE agents, on the loopback
// interface and in a folder of the test.
//
//	server := spire.Start(t)
//	agent := server.Agent(t, token)
//	svids, err := agent.SVIDs(t.Context())
//
// Its datastore is a database of the run's PostgreSQL (test/postgres): so the programs need no C. hack/setup.sh spire makes
// them; they are found as those of test/kube are. What was
// started ends with the test, also when it fails; a test that failed shows the logs.
package spire
