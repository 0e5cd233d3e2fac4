// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli has code that all commands share. It maps errors to exit codes, connects to the API server,
// limits the run time of a command, prints the output in the format of the flag --output, and removes terminal
// control sequences from untrusted text.
package cli
