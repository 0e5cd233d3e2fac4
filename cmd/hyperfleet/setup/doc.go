// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package setup is the command `hyperfleet init`: it asks for what a first fleet of runners
// needs, tries each answer as the operator would, and writes the manifests.
package setup
