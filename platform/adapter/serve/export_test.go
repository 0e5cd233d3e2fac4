// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"

	cloudevents "github.com/cloudevents/sdk-go/v2"
)

// Of Looks, for tests.
const (
	FirstLook = firstLook
	LastLook  = lastLook
	Quiet     = quiet
	GoneLook  = goneLook
)

// Begin is begin.
func (l *Looks) Begin(event *cloudevents.Event) func(gone, deleting bool) { return l.begin(event) }

// Run is run.
func (l *Looks) Run(ctx context.Context, look func(context.Context, cloudevents.Event)) {
	l.run(ctx, look)
}
