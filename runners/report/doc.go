// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report takes what machines say of themselves: a POST of a guest.Report,
// authenticated by a token that is good for one machine's reports and nothing else. The
// log that comes with a machine's last report is kept in a RunnerLog for as long as the
// job is.
package report
