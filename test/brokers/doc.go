// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package brokers gives tests real brokers on loopback, as processes that can be killed
// and started again with what they hold: NATS with JetStream, which is the test binary
// itself under another task, and RabbitMQ, which has to be installed.
//
//	func TestMain(m *testing.M) { os.Exit(brokers.Main(m.Run)) }
//
//	func TestEvents(t *testing.T) {
//		server := brokers.StartNATS(t)
//		...
//		server.Kill(t)
//		server.Restart(t)
//	}
package brokers
