// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package tenants holds an operator with all its areas to what its tenants may reach: a team that
// has every right in its namespace, beside the operator's own namespace and a neighbour's.
package tenants
