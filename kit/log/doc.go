// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package log sets up structured logging for every program: log/slog, as JSON or
// text, at the level that LOG_LEVEL names, with a bridge for libraries that speak
// logr.
//
// Secrets are values of type Secret, which no formatter, encoder or logger can
// print. As a second net, attributes whose key names a credential are redacted
// whatever their value is.
package log
