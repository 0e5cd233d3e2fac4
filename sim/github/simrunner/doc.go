// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simrunner simulates GitHub's runner program: it does what config.sh and run.sh do,
// against a simulated GitHub (package sim/github). It prints the lines and returns the exit codes
// of the real program. The program is small and starts fast, because it runs once per simulated
// job. It imports only the standard library.
package simrunner
