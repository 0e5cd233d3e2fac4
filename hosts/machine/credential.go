// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/nodecert"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/credential"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/kit/step"
)

const (
	// leftOut stands in plans for a credential that is not pushed by them.
	leftOut = "(left out)"
	// removalTimeout bounds what a host's end is held up for its credential's removal, where nobody
	// answers; unableTimeout where it can't even be tried, as for want of a Secret: in a namespace
	// that is being deleted the Secret is gone for good.
	removalTimeout = 5 * time.Minute
	unableTimeout  = time.Minute

	reasonCurrent   = "Current"
	reasonRenewing  = "Renewing"
	reasonExpired   = "Expired"
	reasonNotMade   = "NotMade"
	reasonSigning   = "NodeCredentialPending"
	reasonRemoving  = "Removing"
	reasonRemoved   = "Removed"
	reasonLeftThere = "NodeCredentialLeft"
)

// credentialed says whether the operator makes what the host joins its cluster with.
func credentialed(s *scope) bool {
	return s.fleet != nil && s.fleet.Spec.NodeCredentials != nil && !s.Kind.NamesKubeconfig(s.obj)
}

// renewal is when a credential is to be renewed: when two thirds of its time are over.
func renewal(from, until time.Time) time.Time {
	const parts, of = 2, 3

	return from.Add(until.Sub(from) / of * parts)
}

// renew has the host's credential brought anew when it is time, as a part that the host has
// lost: under a permit of its fleet, whatever its windows. Where the host names a kubeconfig of
// its own by now, that takes its place.
func renew(_ context.Context, s *scope) step.Result {
	has, ours := s.status.NodeCredential, credentialed(s)

	switch {
	case !s.status.Bootstrapped, !ours && (has == nil || !s.Kind.NamesKubeconfig(s.obj)):
		return step.Done()
	case ours && has != nil && s.untilRenewal() > 0:
		return step.Done().Also(v1alpha1.ConditionNodeCredentialCurrent, metav1.ConditionTrue, reasonCurrent,
			"it holds until "+has.Until.UTC().Format(time.RFC3339))
	}

	if !slices.Contains(s.status.LostParts, plan.Kubeconfig) {
		s.status.LostParts = append(s.status.LostParts, plan.Kubeconfig)
	}

	reason, message := reasonNotMade, "the host has none that the operator made"

	switch {
	case has == nil:
	case s.Clock.Now().Before(has.Until.Time):
		reason, message = reasonRenewing, "it holds until "+has.Until.UTC().Format(time.RFC3339)+", and is to be renewed"
	default:
		reason, message = reasonExpired, "it held until "+has.Until.UTC().Format(time.RFC3339)
	}

	return step.Done().Also(v1alpha1.ConditionNodeCredentialCurrent, metav1.ConditionFalse, reason, message)
}

// untilRenewal is how long it is until the host's credential is renewed.
func (s *scope) untilRenewal() time.Duration {
	has := s.status.NodeCredential

	return renewal(has.From.Time, has.Until.Time).Sub(s.Clock.Now())
}

// pushesKubeconfig says whether work brings the host what it joins its cluster with.
func pushesKubeconfig(work job) bool {
	return work.what == drift.FirstBoot ||
		slices.ContainsFunc(work.plan.DriftSteps(work.drifted...), func(p plan.Part) bool { return p.Label == plan.Kubeconfig })
}

// issue puts a credential into the plan of work that brings one. The key is in memory until it
// is at the host: whoever does not have it any more makes another.
func (s *scope) issue(ctx context.Context, work *job, access Access) step.Result {
	now, name := s.Clock.Now(), client.ObjectKeyFromObject(s.obj)
	wanted := s.wanted.get(name)

	if wanted == nil || wanted.Issued != nil && !now.Before(renewal(wanted.Issued.From, wanted.Issued.Until)) {
		var err error
		if wanted, err = nodecert.New(s.obj.GetName(), now); err != nil {
			return step.Fail(err)
		}

		s.wanted.set(name, wanted)
	}

	spec := s.fleet.Spec.NodeCredentials
	key := client.ObjectKey{Namespace: name.Namespace, Name: spec.KubeconfigSecretRef.Name}

	data, err := credential.ReadKubeconfig(ctx, s.Live, key, spec.KubeconfigSecretRef.Key)
	if err != nil {
		return s.unable(fmt.Errorf("read nodeCredentials.kubeconfigSecretRef: %w", err), *work)
	}

	if err := wanted.Advance(ctx, data, spec.Lifetime.Duration, now); err != nil {
		if errclass.Of(err) == errclass.Configuration {
			s.wanted.set(name, nil) // what was refused is not asked for again
		}

		return s.unable(err, *work)
	}

	if wanted.Issued == nil {
		return step.Wait(lookAgain, reasonSigning, "the cluster is asked to sign the credential of the host's Node")
	}

	access.Kubeconfig = wanted.Issued.Kubeconfig
	work.credential = &v1alpha1.HostNodeCredential{
		From: metav1.NewTime(wanted.Issued.From), Until: metav1.NewTime(wanted.Issued.Until),
	}

	if work.plan, err = s.Kind.Plan(ctx, s.Secrets, s.obj, access); err != nil {
		return s.unable(err, *work)
	}

	return step.Done()
}

// placeholder stands for the credential while none is pushed.
func (s *scope) placeholder() log.Secret {
	if !credentialed(s) {
		return log.Secret{}
	}

	return log.NewSecret(leftOut)
}

// removes says whether a credential of ours is at a host that stays as it is.
func removes(s *scope) bool {
	_, stays := s.Kind.Leave(s.obj)

	return stays && s.status.NodeCredential != nil
}

// removed takes the credential off the host, which is left with nothing that joins its cluster.
// It can't be revoked, so that a host that does not let it be taken away for some minutes has it
// until it is over, and an event says so.
func removed(ctx context.Context, s *scope) step.Result {
	has, now := s.status.NodeCredential, s.Clock.Now()
	if has.RemovedAt != nil {
		return step.Done().WithReason(reasonRemoved, "it is off the host")
	}

	if running := s.running(); running != "" {
		if running != drift.Leave {
			s.WorkerPool.cancel(s.obj.GetUID())
		}

		return step.Wait(lookAgain, reasonRemoving, fmt.Sprintf("%s runs at the host", running))
	}

	if has.RemovalStartedAt == nil {
		has.RemovalStartedAt = new(metav1.NewTime(now))
		if err := step.Save(ctx); err != nil {
			return step.Fail(err)
		}
	}

	if !now.Before(has.Until.Time) {
		return step.Done().WithReason(reasonExpired, "it held until "+has.Until.UTC().Format(time.RFC3339))
	}

	limit := removalTimeout
	if s.status.ContactAttempts > 0 && s.status.UnreachableSince == nil {
		limit = unableTimeout
	}

	left := limit - now.Sub(has.RemovalStartedAt.Time)
	if left <= 0 {
		return s.leftThere()
	}

	if wait := s.untilContact(); wait > 0 {
		return step.Wait(min(wait, left), s.status.ContactReason, fmt.Sprintf("%s: the host goes at %s all the same",
			s.contactWords(), now.Add(left).UTC().Format(time.RFC3339)))
	}

	part, _ := s.Kind.Leave(s.obj)

	result := s.begin(ctx, job{what: drift.Leave, leave: part})
	if result.IsFailed() {
		return result
	}

	return step.Wait(min(left, removalWait), reasonRemoving, "the credential of the host's Node is being taken off the host")
}

// removalWait is how soon the removal is looked at that nothing enqueues.
const removalWait = 10 * time.Second

func (s *scope) leftThere() step.Result {
	message := fmt.Sprintf("the host has the credential of Node %s until %s: it could not be taken away: %s",
		s.obj.GetName(), s.status.NodeCredential.Until.UTC().Format(time.RFC3339), s.status.ContactMessage)

	before := meta.FindStatusCondition(*s.obj.StatusConditions(), v1alpha1.ConditionNodeCredentialRemoved)
	if before == nil || before.Reason != reasonLeftThere {
		s.Recorder.Eventf(s.obj, nil, corev1.EventTypeWarning, reasonLeftThere, "Release", "%s", message)
	}

	return step.Done().WithReason(reasonLeftThere, message)
}
