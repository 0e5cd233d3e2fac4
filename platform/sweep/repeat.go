// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"cmp"
	"context"
	"sync"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/platform/lease"
)

// Repeat sweeps at each Config.Interval until ctx ends, and calls handle with each result. Of several replicas with the
// same Config.Lease, only the one that has this lease of the fleet API sweeps. A replica that loses the lease ends its run.
func Repeat(ctx context.Context, options Options, handle func(Report, error)) {
	options.Clock = cmp.Or[clock.WithTicker](options.Clock, clock.RealClock{})

	l := lease.New(lease.Options{API: options.API, Name: options.Config.Lease, Log: options.Log, Clock: options.Clock})

	// The lease is held until the last run has ended.
	leaseCtx, stop := context.WithCancel(context.WithoutCancel(ctx))

	var renewing sync.WaitGroup
	defer renewing.Wait()
	defer stop()

	renewing.Go(func() { l.Run(leaseCtx) })

	for ctx.Err() == nil {
		leading, cancel := l.Lead(ctx)

		for leading.Err() == nil {
			report, err := Run(leading, options)
			if leading.Err() == nil {
				handle(report, err)
			}

			_ = retry.Sleep(leading, options.Clock, options.Config.Interval)
		}

		cancel()
	}
}
