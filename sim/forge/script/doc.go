// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package script runs the scripts of jobs for the simulated runner programs: with /bin/sh, and with cmd.exe on Windows.
package script
