// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package adapter is the contract of an adapter's two files: the deployment
// configuration, which says where the adapter runs and whom it speaks to, and the task
// file, which says what it does with an event. Both are strict YAML: an unknown field is
// an error with its line.
package adapter
