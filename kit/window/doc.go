// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package window computes recurring time windows. A cron expression in a time zone defines when a
// window opens, and a duration defines how long it stays open.
package window
