// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command configdoc makes two things of the comments in api/config/v1alpha1: the page
// docs/reference/config.md, and the texts that `hyperfleet operator --help` shows at each
// flag. Run it from the repository's root. The same sources always give the same files.
package main
