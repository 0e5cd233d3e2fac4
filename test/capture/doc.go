// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package capture stores the output of programs and loggers, and lets tests read the output while it is
// written.
package capture
