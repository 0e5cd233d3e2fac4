// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package spelling checks words: the names of flags, which are derived from the names of fields, the formats
// of --output, and the pages and the code, which use the terms of docs/reference/glossary.md.
package spelling
