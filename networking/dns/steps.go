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
	// nameAgain is when a name that another machine has is tried again.
	nameAgain = 5 * time.Second
	// busyAgain is when a name that another pass is at work on is tried again.
	busyAgain = time.Second
	// slowAgain is when a service that asked for it is called again.
	slowAgain = time.Minute
)

// connected finds the cluster and connects to its DNS service.
func connected(ctx context.Context, s *scope) step.Result {
	var cluster v1alpha1.HypervisorCluster

	err := s.Client.Get(ctx, client.ObjectKey{Name: s.reg.Spec.HypervisorCluster}, &cluster)

	switch {
	case apierrors.IsNotFound(err):
		return step.Stall("ClusterNotFound", fmt.Sprintf(
			"HypervisorCluster %s is gone, and with it the way to %s: make it again, or remove the records by hand and "+
				"then the finalizer %s", s.reg.Spec.HypervisorCluster, recordsInWords(s.reg.Status.Records), Finalizer))
	case err != nil:
		return step.Fail(err)
	}

	if s.access, err = s.Services.open(ctx, &cluster); err != nil {
		return step.ForError(err, slowAgain)
	}

	return step.Done()
}

// connectedToRemove is connected, where there is something to remove.
func connectedToRemove(ctx context.Context, s *scope) step.Result {
	if len(s.reg.Status.Records) == 0 {
		return step.Done()
	}

	return connected(ctx, s)
}

// registered sees to it that the records are there, and that those of an address or a
// name that the machine had before are not.
func registered(ctx context.Context, s *scope) step.Result {
	want, unreversed, err := wanted(s.reg.Spec, s.access.zones)
	if err != nil {
		return step.ForError(err, slowAgain)
	}

	release, ok := s.names.take(s.access.place(), want)
	if !ok {
		return step.Wait(busyAgain, ReasonNameTaken, "another machine is about to take or to leave the name or the address")
	}
	defer release()

	// What may be in DNS is on record before it is there.
	for _, record := range want {
		if !slices.Contains(s.reg.Status.Records, record) {
			s.reg.Status.Records = append(s.reg.Status.Records, record)
		}
	}

	if err := step.Save(ctx); err != nil {
		return step.Fail(err)
	}

	conflicts, err := s.bring(ctx, want)

	switch {
	case err != nil:
		return step.ForError(err, slowAgain)
	case len(conflicts) > 0:
		return blocked(conflicts)
	}

	if s.reg.Status.RegisteredAt == nil {
		now := metav1.NewMicroTime(s.Clock.Now())
		s.reg.Status.RegisteredAt = &now
	}

	message := recordsInWords(want)
	if len(unreversed) > 0 {
		message += "; no PTR for " + strings.Join(unreversed, ", ") + ": no reverse zone in dns.dnsProvider.zones is for it"
	}

	return step.Done().WithReason(ReasonRegistered, message)
}

// blocked tells of names that are somebody else's. One that another machine of ours has is
// soon free, as a rule; another's record is for a person to see to.
func blocked(conflicts []conflict) step.Result {
	texts := make([]string, 0, len(conflicts))
	held := true

	for _, c := range conflicts {
		texts = append(texts, c.String())
		held = held && c.held
	}

	message := strings.Join(texts, "; ")
	if held {
		return step.Wait(nameAgain, ReasonNameTaken, message)
	}

	return step.Stall(ReasonRecordNotOurs, message+": remove it, or use another domain; it is left as it is")
}

// removed sees to it that no record is left.
func removed(ctx context.Context, s *scope) step.Result {
	if len(s.reg.Status.Records) == 0 {
		return step.Done()
	}

	release, ok := s.names.take(s.access.place(), s.reg.Status.Records)
	if !ok {
		return step.Wait(busyAgain, ReasonNameTaken, "another pass is at work on the name")
	}
	defer release()

	if _, err := s.bring(ctx, nil); err != nil {
		return step.ForError(err, slowAgain)
	}

	return step.Done()
}

// bring makes every zone that has, or is to have, records of the machine as it should be.
// A zone that fails does not keep the others; what is left is in the status.
func (s *scope) bring(ctx context.Context, want []v1alpha1.DNSRecord) ([]conflict, error) {
	var (
		conflicts []conflict
		failed    error
		zones     []string
	)

	for _, record := range s.reg.Status.Records {
		if !slices.Contains(zones, record.Zone) {
			zones = append(zones, record.Zone)
		}
	}

	slices.Sort(zones)

	for _, zone := range zones {
		here := slices.DeleteFunc(slices.Clone(want), func(r v1alpha1.DNSRecord) bool { return r.Zone != zone })

		listing, err := s.access.List(ctx, zone)
		if err != nil {
			failed = join(failed, fmt.Errorf("%w (for %s)", err, recordsInWords(s.inZone(zone))))

			continue
		}

		todo := plan(listing, s.owner(), here, s.access.ttl)
		conflicts = append(conflicts, todo.conflicts...)

		if err := s.access.apply(ctx, zone, todo); err != nil {
			failed = join(failed, err)

			continue
		}

		s.settle(zone, here, todo, listing)
	}

	return conflicts, failed
}

// join is errors.Join on one line, for conditions.
func join(a, b error) error {
	switch {
	case a == nil:
		return b
	case b == nil:
		return a
	default:
		return fmt.Errorf("%w; %w", a, b)
	}
}

func (s *scope) inZone(zone string) []v1alpha1.DNSRecord {
	return slices.DeleteFunc(slices.Clone(s.reg.Status.Records), func(r v1alpha1.DNSRecord) bool { return r.Zone != zone })
}

// settle notes what is in a zone once it is as it should be: what is wanted, but for what
// was in conflict and has no mark of ours.
func (s *scope) settle(zone string, here []v1alpha1.DNSRecord, todo changes, listing *Listing) {
	s.reg.Status.Records = slices.DeleteFunc(slices.Clone(s.reg.Status.Records), func(r v1alpha1.DNSRecord) bool {
		if r.Zone != zone {
			return false
		}

		blocked := slices.ContainsFunc(todo.conflicts, func(c conflict) bool { return c.record == r })
		hasMark := slices.ContainsFunc(listing.marksOf(r.Name), func(m mark) bool {
			return m.of(s.owner()) && m.record == recordID(r.Type, r.Value)
		})

		return !slices.Contains(here, r) || (blocked && !hasMark)
	})
}

// recordsInWords lists records.
func recordsInWords(records []v1alpha1.DNSRecord) string {
	if len(records) == 0 {
		return "no records"
	}

	texts := make([]string, 0, len(records))
	for _, record := range records {
		texts = append(texts, record.Type+" "+record.Name+" "+record.Value)
	}

	return strings.Join(texts, ", ")
}
