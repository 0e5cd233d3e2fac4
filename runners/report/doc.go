// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package report takes what machines say of themselves: a POST of a guest.Report,
// authenticated by a token that is good for one machine's reports and nothing else.
package report
