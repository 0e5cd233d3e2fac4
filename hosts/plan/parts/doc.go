// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package parts has the parts that hosts of every kind are made of: files, programs,
// credentials, the tailnet; and the checks of what users write into their configuration.
//
// The scripts are written for bash 3.2, which macOS has, and the tools that both macOS
// and Linux have.
package parts
