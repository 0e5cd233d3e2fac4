// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package otlp runs receivers of OpenTelemetry spans on loopback for tests. They implement OTLP over gRPC
// and HTTP. A request that violates the protocol fails the test.
//
//	receiver := otlp.StartGRPC(t)
//	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.URL)
//	...
//	spans := receiver.Spans()
package otlp
