// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package parts has the parts that hosts of every kind share: files, programs, credentials and the
// tailnet. It also validates what users write into their configuration.
//
// The scripts work with bash 3.2, the version on macOS, and use only tools that both macOS and
// Linux have.
package parts
