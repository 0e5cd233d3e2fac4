// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tracing exports the spans of the programs. Tracing is off unless
// HYPERFLEET_TRACING_ENABLED is true. The environment variables of the OpenTelemetry specification
// (Environment Variable Specification, and OTLP Exporter Configuration) configure it. The exporters
// read most of these variables themselves.
//
// If a variable is invalid, Start returns an error. Later errors, mainly an unreachable receiver,
// lose spans and are logged at most once a minute. They never affect a program's work or its exit
// code. The headers of exports, which often contain a token, appear in no log line and no error.
//
// The following modules are used only by this package:
//   - otlptracegrpc sends spans with OTLP over gRPC, the protocol that most receivers support;
//   - otlptracehttp sends spans with OTLP over HTTP, for receivers behind HTTP proxies;
//   - stdouttrace writes spans as JSON, for use without a receiver.
package tracing
