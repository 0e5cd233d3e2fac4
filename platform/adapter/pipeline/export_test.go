// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"

	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
)

// WithResources replaces the resources phase.
func (p *Pipeline) WithResources(phase func(context.Context, resources.Input) (resources.Result, error)) *Pipeline {
	p.resources = phase

	return p
}
