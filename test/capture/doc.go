// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package capture takes what programs and loggers write, and lets tests read it meanwhile.
package capture
