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

// Sweeper deletes records with our ownership record that belong to no DNSRegistration, in the zones of all
// HypervisorClusters. Such orphans remain if somebody removed the finalizer of a registration. The Sweeper
// runs only on the leader.
type Sweeper struct {
	// APIReader reads from the API server, because the Sweeper must not delete the records of a registration
	// that the cache does not have yet.
	APIReader   client.Reader
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

// Sweep sweeps all zones once. It logs errors, and the next sweep tries the failed zones again. It also
// removes the clients of clusters that no longer have a DNS service.
func (s *Sweeper) Sweep(ctx context.Context) {
	var clusters v1alpha1.HypervisorClusterList
	if err := s.APIReader.List(ctx, &clusters); err != nil {
		s.Log.WarnContext(ctx, "cannot sweep DNS zones", "error", err)

		return
	}

	configured := map[string]bool{}

	for i := range clusters.Items {
		cluster := &clusters.Items[i]
		if cluster.Spec.DNS == nil || cluster.Spec.DNS.DNSProvider == nil {
			continue
		}

		configured[cluster.Name] = true

		access, err := s.Services.open(ctx, cluster)
		if err != nil {
			s.Log.WarnContext(ctx, "cannot sweep DNS zones", "hypervisorCluster", cluster.Name, "error", err)

			continue
		}

		for _, zone := range access.zones {
			if err := s.sweepZone(ctx, access, zone); err != nil {
				s.Log.WarnContext(ctx, "cannot sweep DNS zone", "hypervisorCluster", cluster.Name, "zone", zone, "error", err)
			}
		}
	}

	s.Services.retainOnly(configured)
}

// sweepZone sweeps one zone. It lists the zone before the registrations. Because a registration is created
// before its first ownership record, an ownership record without a registration is an orphan.
func (s *Sweeper) sweepZone(ctx context.Context, access *access, zone string) error {
	listing, err := access.List(ctx, zone)
	if err != nil {
		return err
	}

	var registrations v1alpha1.DNSRegistrationList
	if err := s.APIReader.List(ctx, &registrations); err != nil {
		return fmt.Errorf("list DNSRegistrations: %w", err)
	}

	isRegistered := map[string]bool{}
	for i := range registrations.Items {
		isRegistered[encodeID(registrations.Items[i].Spec.Claim.UID)] = true
	}

	todo := planOrphans(listing, s.OperatorUID, func(uid string) bool { return isRegistered[uid] })
	if todo.isEmpty() {
		return nil
	}

	if err := access.apply(ctx, zone, todo); err != nil {
		return err
	}

	s.Log.InfoContext(ctx, "deleted DNS records of deleted machines", "zone", zone,
		"records", len(todo.deleteRecords), "ownershipRecords", len(todo.deleteOwnership))

	return nil
}
