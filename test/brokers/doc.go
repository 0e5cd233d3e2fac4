// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brokers gives tests a real RabbitMQ on loopback, which has to be installed, as a
// process that can be killed and started again with what it holds.
//
//	func TestEvents(t *testing.T) {
//		server := brokers.StartRabbitMQ(t)
//		...
//		server.Kill(t)
//		server.Restart(t)
//	}
package brokers
