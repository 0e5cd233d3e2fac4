// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package window knows windows of time that come again and again: a cron expression that
// opens them, in a time zone, and how long they stay open.
package window
