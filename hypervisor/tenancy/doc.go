// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tenancy decides what a namespace is allowed to use on a HypervisorCluster. It evaluates
// the cluster's spec.allowedNamespaces. All functions except NewLabelsFunc are pure.
package tenancy
