// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package log sets up structured logging for every program. It uses log/slog with JSON or text
// output, at the level of LOG_LEVEL, and adapts the logger for libraries that use logr.
//
// Secrets are values of type Secret, which no formatter, encoder or logger can print. In addition,
// the logger redacts every attribute whose key names a credential.
package log
