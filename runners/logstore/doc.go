// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logstore brings the ends of runners' logs from RunnerLogs into S3-compatible storage.
// Package report writes each log into a RunnerLog first, with a label; so a log survives the
// operator, and no machine waits for a store. What a store does not take is tried again, ever
// more seldom, and in the end stays in its RunnerLog, which says why.
package logstore
