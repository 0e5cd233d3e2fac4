// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command taskdoc writes docs/reference/task-file.md from the Go types in api/adapter:
// every field of an adapter's two files with its type and meaning. Run it from the
// repository's root. The same types always give the same page.
package main
