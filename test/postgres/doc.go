// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package postgres gives tests a real PostgreSQL server, one for all test programs of a
// `make test` (package lease), else one for each, and a database of its own to each test. A
// test that kills or freezes its server starts one by Start.
//
//	var server *postgres.Server
//
//	func TestMain(m *testing.M) {
//		postgres.Main(m, func(s *postgres.Server) { server = s })
//	}
//
//	func TestStore(t *testing.T) {
//		url := server.Database(t)
//		...
//	}
package postgres
