// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/dustin/go-humanize/english"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/machine"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// mostNew bounds the hosts that are on their way to their first boot: what is wrong with the
	// first is not ordered many times over.
	mostNew = 3
	// spacing is how long after a host another one is made.
	spacing = 10 * time.Second
)

// replica is a host as the number of hosts sees it.
type replica struct {
	name string
	// made says that the fleet made it, and leaving that it is being deleted.
	made, leaving bool
	// booted says that it has had its first boot, and well that it carries machines.
	booted, well bool
	since        time.Time
}

// scaling is what has to happen for a fleet to have as many hosts as it should.
type scaling struct {
	// add says that one is to be made; remove names one that is to be deleted.
	add    bool
	remove string
	// again is how soon more may happen by itself; 0 for never.
	again time.Duration
	// reason and message say how it stands; met that there is nothing to do.
	met             bool
	reason, message string
}

// decide says what has to happen next, one host at a time. It is pure, and chooses the same host
// until that is leaving.
func decide(all []replica, want, maxUnavailable int, now time.Time) scaling {
	var (
		have, fresh, leaving int
		last                 time.Time
		ours                 []replica
	)

	for _, r := range all {
		if r.leaving {
			leaving++

			continue
		}

		have++

		if !r.booted {
			fresh++
		}

		if r.made {
			ours = append(ours, r)

			if r.since.After(last) {
				last = r.since
			}
		}
	}

	counts := fmt.Sprintf("%s, want %d", english.Plural(have, "host", ""), want)
	rest := last.Add(spacing).Sub(now)

	switch {
	case have == want:
		return scaling{met: true, reason: "Met", message: counts}
	case have < want && fresh >= mostNew:
		return scaling{reason: "HostsBooting", message: fmt.Sprintf("%s: %d have yet to have their first boot", counts, fresh)}
	case have < want && rest > 0:
		return scaling{reason: "Ordering", message: counts, again: rest}
	case have < want:
		return scaling{add: true, reason: "Ordering", message: counts, again: spacing}
	case len(ours) == 0:
		return scaling{
			reason: "HostsMadeByHand", message: counts + ": none of them was made by the fleet: delete those that are too many",
		}
	case leaving >= maxUnavailable:
		return scaling{reason: "HostsLeaving", message: fmt.Sprintf("%s: %d are leaving", counts, leaving)}
	default:
		return scaling{remove: slices.MinFunc(ours, first).name, reason: "Returning", message: counts}
	}
}

// first goes before others: one that was never booted, then one that carries no machines, then
// the newest: least has settled on it.
func first(a, b replica) int {
	rank := func(r replica) int {
		switch {
		case !r.booted:
			return 0
		case !r.well:
			return 1
		default:
			return 2
		}
	}

	return cmp.Or(cmp.Compare(rank(a), rank(b)), b.since.Compare(a.since), cmp.Compare(b.name, a.name))
}

// scale makes or deletes one host. What it says keeps nothing from being rolled out.
func scale(ctx context.Context, s *scope) step.Result {
	// From the API server itself: a cache may lack what was made or deleted a moment ago.
	hosts, taken, err := s.members(ctx)
	if err != nil {
		return step.Fail(err)
	}

	all := make([]replica, 0, len(hosts))
	for name, host := range hosts {
		all = append(all, replica{
			name: name, made: host.GetAnnotations()[v1alpha1.AnnotationMadeByFleet] == s.fleet.Name,
			leaving: !host.GetDeletionTimestamp().IsZero(), booted: host.Host().Bootstrapped, well: host.Host().Ready,
			since: host.GetCreationTimestamp().Time,
		})
	}

	next := decide(all, int(*s.fleet.Spec.Replicas), most(s.fleet.Spec.Rollout.MaxUnavailable, len(all)), s.Clock.Now())
	if s.fleet.Spec.Paused && !next.met {
		next = scaling{reason: "Paused", message: next.message}
	}

	if next.add || next.remove != "" {
		// Looked at after the hosts: whoever takes the number away first, and then a host, meant it so.
		changed, err := s.changed(ctx)
		if err != nil {
			return step.Fail(err)
		}

		if changed {
			return step.Done() // its event brings the next pass
		}
	}

	switch {
	case next.add:
		next, err = s.order(ctx, hosts[s.fleet.Spec.TemplateHost], taken, next)
	case next.remove != "":
		err = s.giveBack(ctx, hosts[next.remove])
	}

	if err != nil {
		return step.Fail(err)
	}

	s.again = next.again
	status := metav1.ConditionFalse

	if next.met {
		status = metav1.ConditionTrue
	}

	return step.Done().Also(v1alpha1.ConditionReplicasMet, status, next.reason, next.message)
}

// changed says whether the fleet is another than the cache had when the pass began: an order costs a
// day's rent, and a host that is given back is wiped.
func (s *scope) changed(ctx context.Context) (bool, error) {
	now := &v1alpha1.HostFleet{}

	err := s.Live.Get(ctx, client.ObjectKeyFromObject(s.fleet), now)
	if apierrors.IsNotFound(err) {
		return true, nil
	}

	if err != nil {
		return false, fmt.Errorf("get fleet past the cache: %w", err)
	}

	// A deletion is a new generation as well.
	return now.UID != s.fleet.UID || now.Generation != s.fleet.Generation, nil
}

// members are the fleet's hosts by name; taken are the names of all hosts of its kind.
func (s *scope) members(ctx context.Context) (hosts map[string]machine.Object, taken map[string]bool, err error) {
	list := s.kind.NewList()
	if err := s.Live.List(ctx, list, client.InNamespace(s.fleet.Namespace)); err != nil {
		return nil, nil, fmt.Errorf("list hosts: %w", err)
	}

	items, err := machine.Items(list)
	if err != nil {
		return nil, nil, fmt.Errorf("list hosts: %w", err)
	}

	hosts, taken = map[string]machine.Object{}, map[string]bool{}

	for _, item := range items {
		taken[item.GetName()] = true

		if s.kind.FleetName(item) == s.fleet.Name {
			hosts[item.GetName()] = item
		}
	}

	return hosts, taken, nil
}

// order makes a host. Its name is the first that is free, so that one whose making got no answer
// is not made twice.
func (s *scope) order(ctx context.Context, template machine.Object, taken map[string]bool, next scaling) (scaling, error) {
	if template == nil {
		next.reason, next.again = "TemplateNotFound", 0
		next.message += fmt.Sprintf(": the fleet has no host %s, which new ones are made like: name another templateHost",
			s.fleet.Spec.TemplateHost)

		return next, nil
	}

	host := s.kind.Like(template)
	if host == nil {
		next.reason, next.again = "HostsNotOrdered", 0
		next.message += fmt.Sprintf(": nobody orders hosts of kind %s: make them, and take replicas away",
			s.fleet.Spec.HostKind)

		return next, nil
	}

	if keys := s.kind.HostKeys(host); keys.Empty() && !keys.AcceptNew {
		next.reason, next.again = v1alpha1.ReasonHostKeyUnknown, 0
		next.message += fmt.Sprintf(": nothing would say which key a new host has: set spec.sshHostKeyChecking: AcceptNew or "+
			"spec.sshHostCertAuthorities of %s, which new ones are made like", template.GetName())

		return next, nil
	}

	number := 1
	for taken[s.fleet.Name+"-"+strconv.Itoa(number)] {
		number++
	}

	host.SetNamespace(s.fleet.Namespace)
	host.SetName(s.fleet.Name + "-" + strconv.Itoa(number))
	host.SetAnnotations(map[string]string{v1alpha1.AnnotationMadeByFleet: s.fleet.Name})

	err := s.Client.Create(ctx, host)

	switch {
	case apierrors.IsAlreadyExists(err):
		return next, nil // made a moment ago: the next pass sees it
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		next.reason, next.again = "HostRefused", 0
		next.message = fmt.Sprintf("%s: make host %s: %v", next.message, host.GetName(), err)

		return next, nil
	case err != nil:
		return next, fmt.Errorf("make host %s: %w", host.GetName(), err)
	}

	s.Recorder.Eventf(s.fleet, host, corev1.EventTypeNormal, "HostOrdered", "Scale", "%s is made like %s",
		host.GetName(), template.GetName())

	return next, nil
}

// giveBack deletes a host, unless it was made anew in the meantime. It is drained and given back
// as any other.
func (s *scope) giveBack(ctx context.Context, host machine.Object) error {
	uid := host.GetUID()
	if err := client.IgnoreNotFound(s.Client.Delete(ctx, host, client.Preconditions{UID: &uid})); err != nil {
		return fmt.Errorf("delete host %s: %w", host.GetName(), err)
	}

	s.Recorder.Eventf(s.fleet, host, corev1.EventTypeNormal, "HostReturned", "Scale", "%s is one too many", host.GetName())

	return nil
}
