// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// Sweeper removes what carries our mark in the zones of any HypervisorCluster and belongs
// to no DNSRegistration: what is left when somebody took a registration's finalizer off.
// It runs on the leader.
type Sweeper struct {
	// Live reads from the API server itself: a registration that is not in a cache yet is
	// no reason to take its records away.
	Live        client.Reader
	Services    *Services
	OperatorUID string
	Interval    time.Duration
	Clock       clock.WithTicker
	Log         *slog.Logger
}

// Start sweeps until ctx ends.
func (s *Sweeper) Start(ctx context.Context) error {
	ticker := s.Clock.NewTicker(s.Interval)
	defer ticker.Stop()

	for {
		s.Sweep(ctx)

		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// Sweep goes once through all zones. What fails is logged and left for the next time.
func (s *Sweeper) Sweep(ctx context.Context) {
	var clusters v1alpha1.HypervisorClusterList
	if err := s.Live.List(ctx, &clusters); err != nil {
		s.Log.WarnContext(ctx, "DNS zones cannot be swept", "error", err)

		return
	}

	named := map[string]bool{}

	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		if cluster.Spec.DNS == nil || cluster.Spec.DNS.DNSProvider == nil {
			continue
		}

		named[cluster.Name] = true

		access, err := s.Services.open(ctx, cluster)
		if err != nil {
			s.Log.WarnContext(ctx, "DNS zones cannot be swept", "hypervisorCluster", cluster.Name, "error", err)

			continue
		}

		for _, zone := range access.zones {
			if err := s.zone(ctx, access, zone); err != nil {
				s.Log.WarnContext(ctx, "DNS zone cannot be swept", "hypervisorCluster", cluster.Name, "zone", zone, "error", err)
			}
		}
	}

	s.Services.keep(named)
}

// zone sweeps one zone. The zone is read before the registrations: a registration is there
// before its first mark, so a mark of one that is not is nobody's.
func (s *Sweeper) zone(ctx context.Context, access *access, zone string) error {
	listing, err := access.List(ctx, zone)
	if err != nil {
		return err
	}

	var registrations v1alpha1.DNSRegistrationList
	if err := s.Live.List(ctx, &registrations); err != nil {
		return fmt.Errorf("list DNS registrations: %w", err)
	}

	known := map[string]bool{}
	for i := range registrations.Items {
		known[id(registrations.Items[i].Spec.Claim.UID)] = true
	}

	todo := stray(listing, s.OperatorUID, func(uid string) bool { return known[uid] })
	if todo.none() {
		return nil
	}

	if err := access.apply(ctx, zone, todo); err != nil {
		return err
	}

	s.Log.InfoContext(ctx, "DNS records of machines that are gone were removed", "zone", zone,
		"records", len(todo.deleteRecords), "marks", len(todo.deleteMarks))

	return nil
}
