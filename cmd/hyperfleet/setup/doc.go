// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package setup implements `hyperfleet init`. The command asks for what a first fleet of runners needs,
// checks each answer in the same way as the operator, and writes the manifests.
package setup
