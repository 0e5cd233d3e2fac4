// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gomod finds the files of Go modules that are read but not imported, such as the
// CustomResourceDefinitions of other projects. Such a module is not in our go.mod files. The go
// command downloads it, and its checksum is compared with a checksum that the caller provides.
package gomod
