// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package openapi

import _ "embed"

//go:embed openapi.yaml
var document string

// Document returns the contract, openapi.yaml. The server validates requests against it, and tests
// validate responses.
func Document() []byte { return []byte(document) }

// HeaderTenant is the header of responses to callers that can see the resources of one tenant only. With
// it, such a caller does not mistake an invisible resource of another tenant for a deleted one.
const HeaderTenant = "X-Hyperfleet-Tenant"
