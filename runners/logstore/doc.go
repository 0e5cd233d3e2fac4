// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package logstore moves the ends of runner logs from RunnerLogs to S3-compatible storage.
//
// Package report first writes each log to a RunnerLog with the label for pending logs. So a log survives a
// restart of the operator, and no machine waits for the store. If the store is unavailable, the controller
// retries with growing delays for about two hours. After that the log stays in its RunnerLog, and
// spec.notStored holds the last error.
package logstore
