// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command taskdoc writes docs/reference/task-file.md from the Go types in api/adapter. The page lists each
// field of the two files of an adapter with its type and description. Run the command in the root folder of
// the repository. The output is deterministic.
package main
