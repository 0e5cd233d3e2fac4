// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// nameTakenDelay is the delay before a retry if another machine has the name.
	nameTakenDelay = 5 * time.Second
	// nameBusyDelay is the delay before a retry if another reconcile works on the name.
	nameBusyDelay = time.Second
	// rateLimitDelay is the delay before a retry if the service limits the request rate.
	rateLimitDelay = time.Minute
)

// connect reads the cluster and connects to its DNS service.
func connect(ctx context.Context, s *scope) step.Result {
	var cluster v1alpha1.HypervisorCluster

	err := s.Client.Get(ctx, client.ObjectKey{Name: s.reg.Spec.HypervisorCluster}, &cluster)

	switch {
	case apierrors.IsNotFound(err):
		return step.Stall("ClusterNotFound", fmt.Sprintf(
			"HypervisorCluster %s does not exist, so the operator cannot reach %s: recreate it, or delete the records by hand "+
				"and then remove the finalizer %s", s.reg.Spec.HypervisorCluster, formatRecords(s.reg.Status.Records), Finalizer))
	case err != nil:
		return step.Fail(err)
	}

	if s.access, err = s.Services.open(ctx, &cluster); err != nil {
		return step.FromError(err, rateLimitDelay)
	}

	return step.Done()
}

// connectForRemoval calls connect, unless there are no records to delete.
func connectForRemoval(ctx context.Context, s *scope) step.Result {
	if len(s.reg.Status.Records) == 0 && len(s.reg.Status.Conditions) == 0 {
		// The status was lost, or nothing was done yet: the records may exist.
		if result := s.assumeRecords(ctx); !result.IsDone() {
			return result
		}
	}

	if len(s.reg.Status.Records) == 0 {
		return step.Done()
	}

	return connect(ctx, s)
}

// assumeRecords writes the records that the registration can have into the status.
func (s *scope) assumeRecords(ctx context.Context) step.Result {
	var cluster v1alpha1.HypervisorCluster

	err := s.Client.Get(ctx, client.ObjectKey{Name: s.reg.Spec.HypervisorCluster}, &cluster)
	if client.IgnoreNotFound(err) != nil {
		return step.Fail(err)
	}

	if cluster.Spec.DNS == nil || cluster.Spec.DNS.DNSProvider == nil {
		return step.Done()
	}

	// A spec without a valid name or address never had records.
	s.reg.Status.Records, _, _ = buildRecords(s.reg.Spec, allowedZones(cluster.Spec.DNS))

	return step.Done()
}

// registerRecords adds the records of the machine, and deletes records with earlier names or addresses of
// the machine.
func registerRecords(ctx context.Context, s *scope) step.Result {
	records, withoutReverseZone, err := buildRecords(s.reg.Spec, s.access.zones)
	if err != nil {
		return step.FromError(err, rateLimitDelay)
	}

	release, ok := s.names.tryLock(s.access.serviceKey(), records)
	if !ok {
		return step.Wait(nameBusyDelay, ReasonNameTaken, "another machine with the same name or address is being registered or removed")
	}
	defer release()

	// Record all records in the status before they are added to DNS.
	for _, record := range records {
		if !slices.Contains(s.reg.Status.Records, record) {
			s.reg.Status.Records = append(s.reg.Status.Records, record)
		}
	}

	if err := step.SaveStatus(ctx); err != nil {
		return step.Fail(err)
	}

	conflicts, err := s.reconcileZones(ctx, records)

	switch {
	case err != nil:
		return step.FromError(err, rateLimitDelay)
	case len(conflicts) > 0:
		return reportConflicts(conflicts)
	}

	if s.reg.Status.RegisteredAt == nil {
		now := metav1.NewMicroTime(s.Clock.Now())
		s.reg.Status.RegisteredAt = &now
	}

	message := formatRecords(records)
	if len(withoutReverseZone) > 0 {
		message += "; no PTR record for " + strings.Join(withoutReverseZone, ", ") +
			": dns.dnsProvider.zones has no reverse zone for it"
	}

	return step.Done().WithReason(ReasonRegistered, message)
}

// reportConflicts returns the result for names that belong to other owners. It waits if the names belong to
// other machines of this operator, because these names are usually free soon. It stalls for a record that
// the operator did not create, because a person has to resolve this.
func reportConflicts(conflicts []conflict) step.Result {
	texts := make([]string, 0, len(conflicts))
	areAllHeldByMachines := true

	for _, c := range conflicts {
		texts = append(texts, c.String())
		areAllHeldByMachines = areAllHeldByMachines && c.isHeldByMachine
	}

	message := strings.Join(texts, "; ")
	if areAllHeldByMachines {
		return step.Wait(nameTakenDelay, ReasonNameTaken, message)
	}

	return step.Stall(ReasonRecordNotOurs, message+": delete the record, or use another domain; the operator does not change it")
}

// removeRecords deletes all records of the machine.
func removeRecords(ctx context.Context, s *scope) step.Result {
	if len(s.reg.Status.Records) == 0 {
		return step.Done()
	}

	release, ok := s.names.tryLock(s.access.serviceKey(), s.reg.Status.Records)
	if !ok {
		return step.Wait(nameBusyDelay, ReasonNameTaken, "another reconcile works on the name")
	}
	defer release()

	if _, err := s.reconcileZones(ctx, nil); err != nil {
		return step.FromError(err, rateLimitDelay)
	}

	return step.Done()
}

// reconcileZones brings all zones with records in the status to the desired records. If one zone fails, it
// continues with the other zones. The status keeps the records of a failed zone.
func (s *scope) reconcileZones(ctx context.Context, desired []v1alpha1.DNSRecord) ([]conflict, error) {
	var (
		conflicts []conflict
		joinedErr error
		zones     []string
	)

	for _, record := range s.reg.Status.Records {
		if !slices.Contains(zones, record.Zone) {
			zones = append(zones, record.Zone)
		}
	}

	slices.Sort(zones)

	for _, zone := range zones {
		inZone := slices.DeleteFunc(slices.Clone(desired), func(r v1alpha1.DNSRecord) bool { return r.Zone != zone })

		listing, err := s.access.List(ctx, zone)
		if err != nil {
			joinedErr = joinErrors(joinedErr, fmt.Errorf("%w (for %s)", err, formatRecords(s.recordsInZone(zone))))

			continue
		}

		changes := planChanges(listing, s.owner(), inZone, s.access.ttl)
		conflicts = append(conflicts, changes.conflicts...)

		if err := s.access.apply(ctx, zone, changes); err != nil {
			joinedErr = joinErrors(joinedErr, err)

			continue
		}

		s.updateRecords(zone, inZone, changes, listing)
	}

	return conflicts, joinedErr
}

// joinErrors joins two errors on one line, for conditions. Each of them may be nil.
func joinErrors(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	default:
		return fmt.Errorf("%w; %w", a, b)
	}
}

func (s *scope) recordsInZone(zone string) []v1alpha1.DNSRecord {
	return slices.DeleteFunc(slices.Clone(s.reg.Status.Records), func(r v1alpha1.DNSRecord) bool { return r.Zone != zone })
}

// updateRecords writes the records of a zone into the status after the changes were made. These are the
// desired records, except for records with a conflict that have no ownership record of this machine.
func (s *scope) updateRecords(zone string, desired []v1alpha1.DNSRecord, todo changes, listing *Listing) {
	s.reg.Status.Records = slices.DeleteFunc(slices.Clone(s.reg.Status.Records), func(r v1alpha1.DNSRecord) bool {
		if r.Zone != zone {
			return false
		}

		hasConflict := slices.ContainsFunc(todo.conflicts, func(c conflict) bool { return c.record == r })
		hasOwnership := slices.ContainsFunc(listing.ownershipRecordsFor(r.Name), func(m ownershipRecord) bool {
			return m.belongsTo(s.owner()) && m.record == recordID(r.Type, r.Value)
		})

		return !slices.Contains(desired, r) || (hasConflict && !hasOwnership)
	})
}

func formatRecords(records []v1alpha1.DNSRecord) string {
	if len(records) == 0 {
		return "no records"
	}

	texts := make([]string, 0, len(records))
	for _, record := range records {
		texts = append(texts, record.Type+" "+record.Name+" "+record.Value)
	}

	return strings.Join(texts, ", ")
}
