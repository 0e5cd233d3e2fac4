// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package otlp gives tests receivers of OpenTelemetry spans on loopback, which speak OTLP
// over gRPC or HTTP. They are strict: what the protocol does not allow is refused, and
// fails the test.
//
//	receiver := otlp.StartGRPC(t)
//	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.URL)
//	...
//	spans := receiver.Spans()
package otlp
