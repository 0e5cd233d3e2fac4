// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package alerts evaluates the shipped alerting rules with Prometheus' own engine, over the metrics that a program
// served before and during an outage. The minutes of the rules are minutes of a history, so no test waits for them.
package alerts
