// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package db

import (
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

type (
	// Conditions are the conditions of a resource by type.
	Conditions map[string]openapi.ResourceCondition
	// Reported has the times at which unchanged conditions were last reported, by type.
	Reported map[string]time.Time
	// Ref is a reference of a resource, as in the view resource_rows.
	Ref struct {
		Type string `json:"type"`
		ID   string `json:"id"`
		Kind string `json:"kind"`
	}
)
