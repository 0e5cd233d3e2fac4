// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package postgres runs a real PostgreSQL server for tests. All test programs of a `make test` share one
// server (package lease). Without `make test`, each program starts its own. Each test has its own database.
// A test that kills or suspends the server must start one with Start.
//
//	var server *postgres.Server
//
//	func TestMain(m *testing.M) {
//		postgres.Main(m, func(s *postgres.Server) { server = s })
//	}
//
//	func TestStore(t *testing.T) {
//		url := server.NewDatabase(t)
//		...
//	}
package postgres
