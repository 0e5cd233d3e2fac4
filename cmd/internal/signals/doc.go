// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package signals ends programs on SIGINT and SIGTERM, and limits how long they may take to end.
package signals
