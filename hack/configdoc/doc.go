// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command configdoc generates two files from the comments in api/config/v1alpha1: the page
// docs/reference/config.md, and the help texts of the flags of `hyperfleet operator`. Run the command in
// the root folder of the repository. The output is deterministic.
package main
