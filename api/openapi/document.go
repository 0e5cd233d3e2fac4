// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package openapi

import _ "embed"

//go:embed openapi.yaml
var document string

// Document is the contract, openapi.yaml: what the server checks requests against, and
// tests its answers.
func Document() []byte { return []byte(document) }
