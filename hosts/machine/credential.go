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
	// placeholderText replaces the credential in plans that do not push it.
	placeholderText = "(left out)"
	// removalTimeout limits how long the release of a host waits for the removal of its credential
	// while the host is unreachable.
	removalTimeout = 5 * time.Minute
	// removalStartTimeout is the limit if the removal can't even start, for example because a Secret is
	// missing. In a namespace that is being deleted, nobody can create the Secret again.
	removalStartTimeout = time.Minute

	reasonCurrent              = "Current"
	reasonRenewing             = "Renewing"
	reasonExpired              = "Expired"
	reasonNotIssued            = "NotIssued"
	reasonClusterChanged       = "ClusterChanged"
	reasonSigning              = "NodeCredentialPending"
	reasonRemoving             = "Removing"
	reasonRemoved              = "Removed"
	reasonCredentialNotRemoved = "NodeCredentialNotRemoved" // #nosec G101 -- a word
)

// needsCredential returns true if the operator issues the credential with which the host joins its
// cluster.
func needsCredential(s *scope) bool {
	return s.fleet != nil && s.fleet.Spec.NodeCredentials != nil && !s.Kind.HasKubeconfig(s.obj)
}

// renewalTime returns when to renew a credential: after two thirds of its validity.
func renewalTime(from, until time.Time) time.Time {
	const numerator, denominator = 2, 3

	return from.Add(until.Sub(from) / denominator * numerator)
}

// requestCredentialRenewal marks the kubeconfig part as lost if the host has no issued credential, or if its credential
// must be renewed now. A later step repairs the part, and so renews the credential. Like every repair, this needs
// a permit of the fleet but no maintenance window. If the spec names a kubeconfig now, that kubeconfig replaces
// the issued credential.
func requestCredentialRenewal(_ context.Context, s *scope) step.Result {
	issued, needsIssued := s.status.NodeCredential, needsCredential(s)
	isReplacedBySpec := issued != nil && s.Kind.HasKubeconfig(s.obj)

	switch {
	case !s.status.Bootstrapped, !needsIssued && !isReplacedBySpec:
		return step.Done()
	case needsIssued && issued != nil && s.renewalDelay() > 0:
		return step.Done().WithCondition(v1alpha1.ConditionNodeCredentialCurrent, metav1.ConditionTrue, reasonCurrent,
			"the credential is valid until "+issued.Until.UTC().Format(time.RFC3339))
	}

	if !slices.Contains(s.status.LostParts, plan.KubeconfigLabel) {
		s.status.LostParts = append(s.status.LostParts, plan.KubeconfigLabel)
	}

	reason, message := reasonNotIssued, "the host has no credential issued by the operator"

	switch {
	case issued == nil:
	case s.Clock.Now().Before(issued.Until.Time):
		reason = reasonRenewing
		message = "the credential is valid until " + issued.Until.UTC().Format(time.RFC3339) + " and is due for renewal"
	default:
		reason, message = reasonExpired, "the credential expired at "+issued.Until.UTC().Format(time.RFC3339)
	}

	return step.Done().WithCondition(v1alpha1.ConditionNodeCredentialCurrent, metav1.ConditionFalse, reason, message)
}

// renewalDelay returns the time until the host's credential is due for renewal.
func (s *scope) renewalDelay() time.Duration {
	issued := s.status.NodeCredential

	return renewalTime(issued.From.Time, issued.Until.Time).Sub(s.Clock.Now())
}

// hasKubeconfigPart returns true if the job pushes the kubeconfig part.
func hasKubeconfigPart(work job) bool {
	return work.action == drift.FirstBoot ||
		slices.ContainsFunc(work.plan.DriftSteps(work.drifted...), func(p plan.Part) bool {
			return p.Label == plan.KubeconfigLabel
		})
}

// issueCredential adds a credential to the plan of a job that pushes one. The private key exists
// only in memory until it is on the host. If the operator restarts before that, it creates another
// key.
func (s *scope) issueCredential(ctx context.Context, work *job, access Access) step.Result {
	now, name := s.Clock.Now(), client.ObjectKeyFromObject(s.obj)
	pending := s.pendingCredentials.get(name)

	data, err := s.readFleetKubeconfig(ctx)
	if err != nil {
		return s.recordStartFailure(err, *work)
	}

	if pending == nil || pending.Credential != nil && isOutdated(pending.Credential, data, now) {
		if pending, err = nodecert.New(s.obj.GetName(), now); err != nil {
			return step.Fail(err)
		}

		s.pendingCredentials.set(name, pending)
	}

	if err := pending.Advance(ctx, data, s.fleet.Spec.NodeCredentials.Lifetime.Duration, now); err != nil {
		if errclass.ClassOf(err) == errclass.Configuration {
			s.pendingCredentials.set(name, nil) // do not repeat a refused request
		}

		return s.recordStartFailure(err, *work)
	}

	if pending.Credential == nil {
		return s.waitForHost(retryInterval, reasonSigning, "waiting for the cluster to sign the host's Node credential")
	}

	access.Kubeconfig = pending.Credential.Kubeconfig
	work.credential = &v1alpha1.HostNodeCredential{
		From: metav1.NewTime(pending.Credential.NotBefore), Until: metav1.NewTime(pending.Credential.NotAfter),
		Cluster: pending.Credential.Cluster,
	}

	if work.plan, err = s.Kind.RenderPlan(ctx, s.Secrets, s.obj, access); err != nil {
		return s.recordStartFailure(err, *work)
	}

	return step.Done()
}

// isOutdated returns true if a credential that is not on its host yet must be issued again: it is due for renewal, or
// the fleet's kubeconfig has another server or CA by now.
func isOutdated(issued *nodecert.Credential, kubeconfig []byte, now time.Time) bool {
	current, err := credential.DigestOfCluster(kubeconfig)

	return !now.Before(renewalTime(issued.NotBefore, issued.NotAfter)) || err == nil && current != issued.Cluster
}

// readFleetKubeconfig reads the kubeconfig with which the operator issues the credentials of a fleet.
func (s *scope) readFleetKubeconfig(ctx context.Context) ([]byte, error) {
	ref := s.fleet.Spec.NodeCredentials.KubeconfigSecretRef

	name := client.ObjectKey{Namespace: s.obj.GetNamespace(), Name: ref.Name}

	data, err := credential.ReadKubeconfig(ctx, s.APIReader, name, ref.Key)
	if err != nil {
		return nil, fmt.Errorf("read nodeCredentials.kubeconfigSecretRef: %w", err)
	}

	return data, nil
}

// hasClusterChanged returns true if the fleet's kubeconfig has another server or CA than the credential of the host. It
// returns false if this is unknown: the next renewal reports a Secret that cannot be read.
func (s *scope) hasClusterChanged(ctx context.Context) bool {
	issued := s.status.NodeCredential
	if issued == nil || issued.Cluster == "" || !needsCredential(s) {
		return false
	}

	data, err := s.readFleetKubeconfig(ctx)
	if err != nil {
		return false
	}

	current, err := credential.DigestOfCluster(data)

	return err == nil && current != issued.Cluster
}

// placeholderKubeconfig returns the text that replaces the credential in plans that do not push it.
// It is empty if the operator issues no credential for the host.
func (s *scope) placeholderKubeconfig() log.Secret {
	if !needsCredential(s) {
		return log.Secret{}
	}

	return log.NewSecret(placeholderText)
}

// needsCredentialRemoval returns true if an issued credential is on a host that is not wiped on
// release.
func needsCredentialRemoval(s *scope) bool {
	_, staysOnHost := s.Kind.RenderCredentialRemoval(s.obj)

	return staysOnHost && s.status.NodeCredential != nil
}

// removeCredential deletes the credential from the host, so that the host can no longer join its
// cluster. The certificate can't be revoked. If the removal fails for some minutes, the host keeps
// a credential that works until it expires, and an event reports that.
func removeCredential(ctx context.Context, s *scope) step.Result {
	issued, now := s.status.NodeCredential, s.Clock.Now()
	if issued.RemovedAt != nil {
		return step.Done().WithReason(reasonRemoved, "the credential was removed from the host")
	}

	if running := s.runningAction(); running != "" {
		if running != drift.RemoveCredential {
			s.WorkerPool.cancel(s.obj.GetUID())
		}

		return step.Wait(retryInterval, reasonRemoving, fmt.Sprintf("%s is running on the host", running))
	}

	if issued.RemovalStartedAt == nil {
		issued.RemovalStartedAt = new(metav1.NewTime(now))
		if err := step.SaveStatus(ctx); err != nil {
			return step.Fail(err)
		}
	}

	if !now.Before(issued.Until.Time) {
		return step.Done().WithReason(reasonExpired, "the credential expired at "+issued.Until.UTC().Format(time.RFC3339))
	}

	timeout := removalTimeout
	if s.status.ContactAttempts > 0 && s.status.UnreachableSince == nil { // the removal could not start
		timeout = removalStartTimeout
	}

	remaining := timeout - now.Sub(issued.RemovalStartedAt.Time)
	if remaining <= 0 {
		return s.reportCredentialNotRemoved()
	}

	if wait := s.contactDelay(); wait > 0 {
		return step.Wait(min(wait, remaining), s.status.ContactReason, fmt.Sprintf(
			"%s: the host is released at %s even if its credential is not removed",
			s.contactMessage(), now.Add(remaining).UTC().Format(time.RFC3339)))
	}

	part, _ := s.Kind.RenderCredentialRemoval(s.obj)

	result := s.startJob(ctx, job{action: drift.RemoveCredential, removal: part})
	if result.IsFailed() {
		return result
	}

	return step.Wait(min(remaining, removalInterval), reasonRemoving, "removing the Node credential from the host")
}

// removalInterval is when to check the removal again if nothing enqueues the host.
const removalInterval = 10 * time.Second

// reportCredentialNotRemoved ends the step although the host keeps its credential, and emits one event about it.
func (s *scope) reportCredentialNotRemoved() step.Result {
	message := fmt.Sprintf("the host keeps the credential of Node %s, valid until %s, because the removal failed: %s",
		s.obj.GetName(), s.status.NodeCredential.Until.UTC().Format(time.RFC3339), s.status.ContactMessage)

	before := meta.FindStatusCondition(*s.obj.StatusConditions(), v1alpha1.ConditionNodeCredentialRemoved)
	if before == nil || before.Reason != reasonCredentialNotRemoved {
		s.Recorder.Eventf(s.obj, nil, corev1.EventTypeWarning, reasonCredentialNotRemoved, "Release", "%s", message)
	}

	return step.Done().WithReason(reasonCredentialNotRemoved, message)
}
