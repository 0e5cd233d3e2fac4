// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brokers runs a real RabbitMQ on loopback for tests. RabbitMQ must be installed. A test can kill
// the server process and start it again with its data.
//
//	func TestEvents(t *testing.T) {
//		server := brokers.StartRabbitMQ(t)
//		...
//		server.Kill(t)
//		server.Restart(t)
//	}
package brokers
