// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
)

// doctor looks an installation over, once.
type doctor struct {
	client client.Client
	now    time.Time
	// namespace of the objects; empty means all. operator is that of the operator.
	namespace, operator string
	// waiting is how long an object may wait.
	waiting time.Duration

	// blind says that the kinds may not be read.
	blind  bool
	report Report
}

// look goes from what everything needs to what needs everything: kinds, roles, operators,
// objects. What can't be looked at is a finding; an error is one of this program.
func (d *doctor) look(ctx context.Context) error {
	d.report.Findings, d.report.Objects = []Finding{}, map[string]int{}

	kinds, err := known()
	if err != nil {
		return err
	}

	var ailing []Finding

	leaders, sure := d.leaders(ctx)

	for _, area := range config.Areas() {
		there := d.kinds(ctx, area, kinds[area])
		if len(there) == 0 {
			continue
		}

		found, objects := d.objects(ctx, area, there)
		ailing = append(ailing, found...)

		if sure {
			d.led(ctx, area, leaders[area], objects)
		}

		if objects == 0 && len(leaders[area]) == 0 {
			continue
		}

		if err := d.roles(ctx, area); err != nil {
			return err
		}
	}

	d.receiver(ctx)
	d.caches(ctx)
	d.logs(ctx)

	for _, f := range ailing {
		d.report.add(f)
	}

	if err := ctx.Err(); err != nil {
		return fmt.Errorf("look at all in %s: %w", timeout, err)
	}

	return nil
}
