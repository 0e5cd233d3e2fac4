// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gomod finds the files of Go modules that are read and not imported, such as
// other projects' CustomResourceDefinitions: a module that is in no go.mod of ours is
// fetched by the go command, and what came is compared with a sum that the caller knows.
package gomod
