// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spire runs a real SPIRE server and real SPIRE agents for tests, on the loopback interface and in
// a temporary directory.
//
//	server := spire.Start(t)
//	agent := server.StartAgent(t, token)
//	svids, err := agent.WaitForSVIDs(t.Context())
//
// The server's datastore is a database of the test run's PostgreSQL (test/postgres), so that the programs
// can be built without C. hack/setup.sh spire builds the programs. The server and the agents are stopped
// when the test ends. If the test has failed, their logs are printed.
package spire
