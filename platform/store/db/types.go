// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package db

import (
	"time"

	"github.com/hyperfleet/hyperfleet/api/openapi"
)

type (
	// Conditions are a resource's, by type.
	Conditions map[string]openapi.ResourceCondition
	// Reported are the times at which conditions, by type, were last reported as they are.
	Reported map[string]time.Time
	// Ref is a reference of a resource, as the view resource_rows has it.
	Ref struct {
		Type string `json:"type"`
		ID   string `json:"id"`
		Kind string `json:"kind"`
	}
)
