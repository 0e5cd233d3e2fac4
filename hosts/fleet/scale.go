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
	// maxBooting limits how many hosts may be waiting for their first boot. If a fault keeps hosts
	// from booting, the fleet does not order more of them.
	maxBooting = 3
	// orderInterval is the minimum time between the creation of two hosts.
	orderInterval = 10 * time.Second
	// refusedRetry is the time until a host that the API server has refused is created again.
	refusedRetry = 30 * time.Second
)

// replica is the view of a host that decideScaling needs.
type replica struct {
	name string
	// isCreatedByFleet is true if the fleet created the host, and not a person.
	isCreatedByFleet bool
	isDeleting       bool
	// hasBooted is true if the host has had its first boot.
	hasBooted bool
	// isReady is true if the host can run machines.
	isReady bool
	created time.Time
}

// scaling is the next step towards the desired number of hosts.
type scaling struct {
	// shouldCreate is true if one host has to be created. deleteName names the host that has to be
	// deleted. It is empty if none has to be.
	shouldCreate bool
	deleteName   string
	// requeueAfter is when the next step may be possible without an event. It is 0 for never.
	requeueAfter time.Duration
	// isMet is true if the number of hosts is the desired one. reason and message describe the
	// state.
	isMet           bool
	reason, message string
}

// decideScaling returns the next step, which creates or deletes at most one host. It is pure. While
// a host that it chose is not being deleted yet, it chooses the same host again.
func decideScaling(replicas []replica, desiredHosts, maxUnavailable int, now time.Time) scaling {
	var (
		current, booting, deleting int
		lastCreated                time.Time
		owned                      []replica
	)

	for _, r := range replicas {
		if r.isDeleting {
			deleting++

			continue
		}

		current++

		if !r.hasBooted {
			booting++
		}

		if r.isCreatedByFleet {
			owned = append(owned, r)

			if r.created.After(lastCreated) {
				lastCreated = r.created
			}
		}
	}

	summary := fmt.Sprintf("%s, want %d", english.Plural(current, "host", ""), desiredHosts)
	orderDelay := lastCreated.Add(orderInterval).Sub(now)

	switch {
	case current == desiredHosts:
		return scaling{isMet: true, reason: "Met", message: summary}
	case current < desiredHosts && booting >= maxBooting:
		return scaling{reason: "HostsBooting", message: fmt.Sprintf("%s: %d wait for their first boot", summary, booting)}
	case current < desiredHosts && orderDelay > 0:
		return scaling{reason: "ScalingUp", message: summary, requeueAfter: orderDelay}
	case current < desiredHosts:
		return scaling{shouldCreate: true, reason: "ScalingUp", message: summary, requeueAfter: orderInterval}
	case len(owned) == 0:
		return scaling{
			reason:  "HostsCreatedManually",
			message: summary + ": the fleet deletes only hosts that it created: delete the surplus hosts yourself",
		}
	case deleting >= maxUnavailable:
		return scaling{reason: "DeletingHosts", message: fmt.Sprintf("%s: %d are being deleted", summary, deleting)}
	default:
		return scaling{deleteName: slices.MinFunc(owned, compareForDeletion).name, reason: "ScalingDown", message: summary}
	}
}

// compareForDeletion orders hosts by which is deleted first: hosts without a first boot, then hosts
// that are not ready, then the newest host, because it is likely to run the fewest machines.
func compareForDeletion(a, b replica) int {
	rank := func(r replica) int {
		switch {
		case !r.hasBooted:
			return 0
		case !r.isReady:
			return 1
		default:
			return 2
		}
	}

	return cmp.Or(cmp.Compare(rank(a), rank(b)), b.created.Compare(a.created), cmp.Compare(b.name, a.name))
}

// scale creates or deletes one host. A fleet whose number of hosts can't be reached still rolls out
// its configuration.
func scale(ctx context.Context, s *scope) step.Result {
	// Read from the API server, because a cache may lack hosts that were just created or deleted.
	hosts, usedNames, err := s.listHosts(ctx)
	if err != nil {
		return step.Fail(err)
	}

	replicas := make([]replica, 0, len(hosts))
	for name, host := range hosts {
		replicas = append(replicas, replica{
			name: name, isCreatedByFleet: host.GetAnnotations()[v1alpha1.AnnotationMadeByFleet] == s.fleet.Name,
			isDeleting: !host.GetDeletionTimestamp().IsZero(), hasBooted: host.Host().Bootstrapped, isReady: host.Host().Ready,
			created: host.GetCreationTimestamp().Time,
		})
	}

	maxUnavailable := resolveMaxUnavailable(s.fleet.Spec.Rollout.MaxUnavailable, len(replicas))
	next := decideScaling(replicas, int(*s.fleet.Spec.Replicas), maxUnavailable, s.Clock.Now())
	if s.fleet.Spec.Paused && !next.isMet {
		next = scaling{reason: "Paused", message: next.message}
	}

	if next.shouldCreate || next.deleteName != "" {
		// Check the fleet after the hosts are read. If somebody first changed spec.replicas and
		// then deleted a host, the old number must not be restored.
		hasChanged, err := s.hasChanged(ctx)
		if err != nil {
			return step.Fail(err)
		}

		if hasChanged {
			return step.Done() // the event of the change triggers the next reconcile
		}
	}

	switch {
	case next.shouldCreate:
		next, err = s.createHost(ctx, hosts[s.fleet.Spec.TemplateHost], usedNames, next)
	case next.deleteName != "":
		err = s.deleteHost(ctx, hosts[next.deleteName])
	}

	if err != nil {
		return step.Fail(err)
	}

	s.requeueAfter = next.requeueAfter
	status := metav1.ConditionFalse

	if next.isMet {
		status = metav1.ConditionTrue
	}

	return step.Done().WithCondition(v1alpha1.ConditionReplicasMet, status, next.reason, next.message)
}

// hasChanged returns true if the fleet differs from the cached object of this reconcile. Scaling by
// a stale number is expensive: an order costs a day's rent, and a deleted host is wiped.
func (s *scope) hasChanged(ctx context.Context) (bool, error) {
	latest := &v1alpha1.HostFleet{}

	err := s.APIReader.Get(ctx, client.ObjectKeyFromObject(s.fleet), latest)
	if apierrors.IsNotFound(err) {
		return true, nil
	}

	if err != nil {
		return false, fmt.Errorf("get HostFleet %s from the API server: %w", s.fleet.Name, err)
	}

	// A deletion increments the generation, too.
	return latest.UID != s.fleet.UID || latest.Generation != s.fleet.Generation, nil
}

// listHosts returns the fleet's hosts by name, and the names of all hosts of its kind in the
// namespace.
func (s *scope) listHosts(ctx context.Context) (hosts map[string]machine.Object, usedNames map[string]bool, err error) {
	list := s.kind.NewList()
	if err := s.APIReader.List(ctx, list, client.InNamespace(s.fleet.Namespace)); err != nil {
		return nil, nil, fmt.Errorf("list hosts: %w", err)
	}

	items, err := machine.Items(list)
	if err != nil {
		return nil, nil, fmt.Errorf("list hosts: %w", err)
	}

	hosts, usedNames = map[string]machine.Object{}, map[string]bool{}

	for _, item := range items {
		usedNames[item.GetName()] = true

		if s.kind.FleetName(item) == s.fleet.Name {
			hosts[item.GetName()] = item
		}
	}

	return hosts, usedNames, nil
}

// createHost creates a host like the template host. It returns next, with another reason, message and
// requeueAfter if the host can't be created. The name is the first unused one, so a create whose response
// was lost is not repeated under another name.
func (s *scope) createHost(
	ctx context.Context, template machine.Object, usedNames map[string]bool, next scaling,
) (scaling, error) {
	if template == nil {
		next.reason, next.requeueAfter = "TemplateNotFound", 0
		next.message += fmt.Sprintf(": templateHost %s is not a host of the fleet: set spec.templateHost to one of its hosts",
			s.fleet.Spec.TemplateHost)

		return next, nil
	}

	host := s.kind.NewLike(template)
	if host == nil {
		next.reason, next.requeueAfter = "HostsNotOrdered", 0
		next.message += fmt.Sprintf(": hosts of kind %s cannot be ordered: create the hosts yourself, and remove spec.replicas",
			s.fleet.Spec.HostKind)

		return next, nil
	}

	if keys := s.kind.HostKeys(host); keys.IsEmpty() && !keys.AcceptNew {
		next.reason, next.requeueAfter = v1alpha1.ReasonHostKeyUnknown, 0
		next.message += fmt.Sprintf(": the host key of a new host would be unknown: set spec.sshHostKeyChecking: AcceptNew or "+
			"spec.sshHostCertAuthorities on the template host %s", template.GetName())

		return next, nil
	}

	number := 1
	for usedNames[s.fleet.Name+"-"+strconv.Itoa(number)] {
		number++
	}

	host.SetNamespace(s.fleet.Namespace)
	host.SetName(s.fleet.Name + "-" + strconv.Itoa(number))
	host.SetAnnotations(map[string]string{v1alpha1.AnnotationMadeByFleet: s.fleet.Name})

	err := s.Client.Create(ctx, host)

	switch {
	case apierrors.IsAlreadyExists(err):
		return next, nil // created by an earlier attempt: the next reconcile lists it
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		// A quota or an admission policy can change without an event for the fleet, so try again.
		next.reason, next.requeueAfter = "HostRefused", refusedRetry
		next.message = fmt.Sprintf("%s: create host %s: %v", next.message, host.GetName(), err)

		return next, nil
	case err != nil:
		return next, fmt.Errorf("create host %s: %w", host.GetName(), err)
	}

	s.Recorder.Eventf(s.fleet, host, corev1.EventTypeNormal, "HostOrdered", "Scale", "created host %s like host %s",
		host.GetName(), template.GetName())

	return next, nil
}

// deleteHost deletes a host, unless it was recreated in the meantime. The host is drained and
// released like any other deleted host.
func (s *scope) deleteHost(ctx context.Context, host machine.Object) error {
	uid := host.GetUID()

	err := s.Client.Delete(ctx, host, client.Preconditions{UID: &uid})
	if apierrors.IsNotFound(err) {
		return nil // others have deleted it, so it gets no event
	}

	if err != nil {
		return fmt.Errorf("delete host %s: %w", host.GetName(), err)
	}

	s.Recorder.Eventf(s.fleet, host, corev1.EventTypeNormal, "HostReturned", "Scale",
		"deleted host %s: the fleet has more hosts than spec.replicas", host.GetName())

	return nil
}
