// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Command apidoc writes docs/reference/api.md from the CustomResourceDefinitions in deploy/crds. The page
// lists each field with its type, default, limits and description, and each validation rule with its error
// message. Run the command in the root folder of the repository. The output is deterministic.
package main
