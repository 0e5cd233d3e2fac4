// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pipeline

import (
	"context"

	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
)

// With replaces the resources phase.
func (p *Pipeline) With(phase func(context.Context, resources.Input) (resources.Result, error)) *Pipeline {
	p.resources = phase

	return p
}
