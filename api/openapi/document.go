// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package openapi

import _ "embed"

//go:embed openapi.yaml
var document string

// Document is the contract, openapi.yaml: what the server checks requests against, and
// tests its answers.
func Document() []byte { return []byte(document) }

// HeaderTenant is in the answers to those who see the resources of one tenant alone, so that
// they don't take another's for gone.
const HeaderTenant = "X-Hyperfleet-Tenant"
