// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tracing exports the spans that the programs make. It is off unless
// HYPERFLEET_TRACING_ENABLED says true; the rest is said by the variables of the
// OpenTelemetry specification (Environment Variable Specification, and OTLP Exporter
// Configuration), most of which the exporters read by themselves.
//
// What is wrong with the variables is an error at the start. What goes wrong later, a
// receiver that is away first of all, costs spans and a line in the log each minute, and
// never a program's work or its exit code. Headers of exports, which often hold a token,
// are in no log and no error.
//
// Modules that are here for this package alone:
//   - otlptracegrpc sends spans over OTLP's gRPC, the protocol that most receivers take;
//   - otlptracehttp sends them over OTLP's HTTP, for receivers behind HTTP proxies;
//   - stdouttrace writes them as JSON, to look at them without a receiver.
package tracing
