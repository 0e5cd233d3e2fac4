// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package postgres gives tests a real PostgreSQL server, one for each test binary, and
// a database of its own to each test:
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
