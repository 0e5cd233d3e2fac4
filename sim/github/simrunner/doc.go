// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package simrunner is a stand-in for GitHub's runner program: what config.sh
// and run.sh do, against a simulated GitHub (package sim/github). It prints the
// lines and returns the exit codes of the real one. It is small and starts
// fast, for it runs once per simulated job; it imports the standard library only.
package simrunner
