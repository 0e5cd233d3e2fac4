// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cli has what the programs' commands share: the exit codes that their errors stand for, how they
// find the API server, how long they may take, and how they print what came from outside.
package cli
