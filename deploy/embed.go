// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package deploy embeds the generated manifests in programs that apply them, for example the demo, so that these
// programs work without the repository.
package deploy

import "embed"

// CRDs has the CustomResourceDefinitions in crds/*.yaml.
//
//go:embed crds/*.yaml
var CRDs embed.FS

// RBAC has the generated roles in rbac/*.yaml.
//
//go:embed rbac/*.yaml
var RBAC embed.FS

// Shards has the roles of several operators that divide the namespaces, in shards/roles.yaml.
//
//go:embed shards/roles.yaml
var Shards embed.FS

// Account has the operator's namespace, its ServiceAccount, and the bindings of the ServiceAccount to the generated
// roles.
//
//go:embed base/namespace.yaml base/serviceaccount.yaml base/rolebinding.yaml
var Account embed.FS
