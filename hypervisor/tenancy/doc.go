// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tenancy says what a namespace may have of a HypervisorCluster, by its
// spec.allowedNamespaces. All but LabelsOf is pure.
package tenancy
