// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report receives the reports of machines. A report is a POST of a guest.Report, with a
// token that is valid only for the reports of one machine. The log in a machine's last report is
// stored in a RunnerLog, which is kept as long as the job.
package report
