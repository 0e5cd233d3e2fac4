// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deploy carries the generated manifests inside programs that apply them, such
// as the demo, so that they work without the repository.
package deploy

import "embed"

// CRDs holds crds/*.yaml, the CustomResourceDefinitions.
//
//go:embed crds/*.yaml
var CRDs embed.FS

// RBAC holds rbac/*.yaml, the generated roles.
//
//go:embed rbac/*.yaml
var RBAC embed.FS

// Account holds what the operator is in a cluster: its namespace, its service account,
// and the bindings that give it the generated roles.
//
//go:embed base/namespace.yaml base/serviceaccount.yaml base/rolebinding.yaml
var Account embed.FS
