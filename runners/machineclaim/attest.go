// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// reasonNotAttested is the end reason of a machine whose VM stopped, without a failure report, before the
// machine had attested.
const reasonNotAttested = "AttestationFailed"

// hasIdentity reports whether the claim's machine must attest.
func (s *scope) hasIdentity() bool { return vmspec.HasIdentity(s.claim) }

// mayBeRegistered reports whether the machine may be registered with the identity provider.
func (s *scope) mayBeRegistered() bool { return s.hasIdentity() && s.times().CloneStarted != nil }

// newNoRegistryError returns the error for an operator without a SPIRE server.
func (s *scope) newNoRegistryError() error {
	return errclass.New(errclass.Configuration, vmspec.ReasonAttestationUnavailable,
		"attest the machine of claim %s: the operator has no SPIRE server: set identity.spire in its configuration", s.claim.Name)
}

// recordIdentity records the identity of the machine in the claim's status if its template has attestation.
// It must run before the machine is registered.
func (s *scope) recordIdentity(ctx context.Context) error {
	info := s.claim.Status.BootstrapInfo
	if info.Identity != nil {
		return nil
	}

	if info.Identity = vmspec.NewMachineIdentity(s.claim, s.template, s.Settings); info.Identity == nil {
		return nil
	}

	if err := step.SaveStatus(ctx); err != nil {
		return fmt.Errorf("record identity of claim %s: %w", s.claim.Name, err)
	}

	return nil
}

// checkIdentityProvider checks that the identity provider accepts the operator's credentials, before a
// machine is created that could not attest.
func checkIdentityProvider(ctx context.Context, s *scope) step.Result {
	if s.times().CloneStarted != nil {
		return step.Done()
	}

	if s.Identity == nil {
		return connect.NewErrorResult(s.newNoRegistryError(), pollInterval, "")
	}

	if err := s.Identity.Check(ctx); err != nil {
		return connect.NewErrorResult(err, pollInterval, "")
	}

	return step.Done()
}

// registerIdentity registers the machine with the identity provider. It does nothing for a machine without
// attestation. It runs only when the cloud-init ISO is rendered, because the lifetime of the join token
// starts with the registration. The status records before the call that the machine may be registered.
func (s *scope) registerIdentity(ctx context.Context) (identity.Attestation, error) {
	if err := s.recordIdentity(ctx); err != nil || !s.hasIdentity() {
		return identity.Attestation{}, err
	}

	if s.Identity == nil {
		return identity.Attestation{}, s.newNoRegistryError()
	}

	if err := step.SaveStatus(ctx); err != nil {
		return identity.Attestation{}, fmt.Errorf("save status of claim %s: %w", s.claim.Name, err)
	}

	out, err := s.Identity.Register(ctx, vmspec.NewRegistration(s.claim, s.template))
	if err != nil {
		return identity.Attestation{}, fmt.Errorf("register the machine of claim %s: %w", s.claim.Name, err)
	}

	s.claim.Status.BootstrapInfo.Identity.RegisteredAt = s.now()

	return out, nil
}

// attest waits until the machine has attested, according to its report or to the identity provider. It ends
// a machine that cannot attest.
func attest(ctx context.Context, s *scope) step.Result {
	machineIdentity := s.claim.Status.BootstrapInfo.Identity

	switch {
	case machineIdentity.AttestedAt != nil:
		return step.Done()
	case s.hasEnded(): // the status and the condition hold the reason
		return s.deleteClaim(ctx, s.claim.Status.EndReason, "the machine did not attest")
	}

	if s.times().Ready != nil || s.hasAttested(ctx) {
		machineIdentity.AttestedAt = s.now()
		s.eventf(ctx, corev1.EventTypeNormal, "Attested", "Attest", "the machine has attested as %s", machineIdentity.SPIFFEID)

		return step.Done()
	}

	if result := s.endIfRefused(ctx, isAttestationRefusal); !result.IsDone() {
		return result
	}

	isGone, err := s.observeMachine(ctx)
	if err != nil {
		return waitForHypervisor(err)
	}

	if isGone {
		s.recordStopped(ctx, reasonNotAttested)

		return step.Wait(requeueNow, reasonNotAttested, "the VM stopped before the machine had attested")
	}

	timeout, remaining := s.bootstrapTimeout()
	if remaining <= 0 {
		return s.endInTwoReconciles(ctx, guest.ReasonAttestationTimeout,
			fmt.Sprintf("the machine has not attested within %s of the VM's start", timeout))
	}

	return step.Wait(min(remaining, pollInterval), "WaitingForAttestation",
		fmt.Sprintf("the VM runs; the machine must attest and be online within %s of its start", timeout)).DeferWrite()
}

// hasEnded reports whether an earlier reconcile has ended the machine after its start. An end before the
// start is ignored: its error was fixed, and the VM was started afterwards.
func (s *scope) hasEnded() bool {
	ended, started := s.times().Ended, s.times().Started

	return ended != nil && started != nil && !ended.Time.Before(started.Time)
}

// requeueNow is the requeue delay of a reconcile that has recorded something on which the next reconcile acts.
const requeueNow = time.Millisecond

// endInTwoReconciles ends a machine that still runs. The first reconcile writes the reason to the step's
// condition, and the second deletes the claim. The deletion does not change the condition.
func (s *scope) endInTwoReconciles(ctx context.Context, reason, message string) step.Result {
	if s.hasEnded() {
		return s.deleteClaim(ctx, reason, message)
	}

	s.times().Ended = nil
	s.setEnded(reason)
	s.claim.Status.Phase = v1alpha1.MachineClaimDraining
	s.eventf(ctx, corev1.EventTypeWarning, reason, "Attest", "%s", message)

	return step.Wait(requeueNow, reason, message)
}

// hasAttested reports whether the machine has attested, according to its report or to the identity
// provider. It returns false if the identity provider is unavailable.
func (s *scope) hasAttested(ctx context.Context) bool {
	info := s.claim.Status.BootstrapInfo

	switch guest.Phase(info.GuestPhase) {
	case guest.PhaseAttested, guest.PhaseDownloading, guest.PhaseConfiguring, guest.PhaseListening, guest.PhaseRunning,
		guest.PhaseFinished:
		return true
	case guest.PhaseFailed:
		return isSecretsRefusal(info.GuestReason) // the machine attested before it logged in to the secrets manager
	default:
	}

	if s.Identity == nil {
		return false
	}

	hasAttested, err := s.Identity.HasAttested(ctx, vmspec.IdentityOf(s.claim))

	return err == nil && hasAttested
}

// endIfRefused ends a machine that has reported a failure with a matching reason. It returns Done if the
// machine has reported none.
func (s *scope) endIfRefused(ctx context.Context, matches func(reason string) bool) step.Result {
	info := s.claim.Status.BootstrapInfo
	if guest.Phase(info.GuestPhase) != guest.PhaseFailed || !matches(info.GuestReason) {
		return step.Done()
	}

	return s.endInTwoReconciles(ctx, info.GuestReason, info.GuestMessage)
}

// isAttestationRefusal reports whether a machine that failed with the reason could not attest.
func isAttestationRefusal(reason string) bool {
	switch reason {
	case guest.ReasonAttestationUnavailable, guest.ReasonAttestationRefused, guest.ReasonAttestationTimeout,
		guest.ReasonTrustDomainMismatch, guest.ReasonClockSkew, guest.ReasonIdentityMismatch:
		return true
	default:
		return false
	}
}

// isSecretsRefusal reports whether a machine that failed with the reason got no credential from the secrets
// manager.
func isSecretsRefusal(reason string) bool {
	switch reason {
	case guest.ReasonSecretsRefused, guest.ReasonSecretMissing, guest.ReasonSecretsUnavailable:
		return true
	default:
		return false
	}
}

// isCredentialRefusal reports whether a machine that failed with the reason could not get a credential.
func isCredentialRefusal(reason string) bool {
	return isAttestationRefusal(reason) || isSecretsRefusal(reason)
}

// evictIdentity deletes the registration of the machine while its VM still exists. The machine gets no new
// SVID, and its current SVID expires. An error does not stop the deletion: removeIdentity tries again after
// the VM is deleted.
func evictIdentity(ctx context.Context, s *scope) step.Result {
	if s.Identity == nil {
		return step.Done()
	}

	if err := s.Identity.Unregister(ctx, vmspec.IdentityOf(s.claim)); err != nil {
		return step.Done().WithReason("IdentityNotRemoved", err.Error())
	}

	return step.Done()
}

// removeIdentity deletes the registration after the VM is deleted. This second deletion is needed because a
// machine with a device identity can attest again after it was evicted.
func removeIdentity(ctx context.Context, s *scope) step.Result {
	machineIdentity := s.claim.Status.BootstrapInfo.Identity

	if s.Identity == nil {
		return s.leaveIdentity(ctx, "the operator no longer has a SPIRE server")
	}

	err := s.Identity.Unregister(ctx, vmspec.IdentityOf(s.claim))

	switch {
	case err == nil:
		return step.Done()
	case identity.Is(err, identity.Unavailable):
		return step.Wait(pollInterval, connect.ReasonSPIREUnavailable, fmt.Sprintf("the VM is deleted; identity %s "+
			"is deleted as soon as the SPIRE server is reachable (without identity.spire in the operator's configuration "+
			"the identity is not deleted): %v", machineIdentity.SPIFFEID, err))
	default:
		return s.leaveIdentity(ctx, err.Error())
	}
}

// leaveIdentity finishes the deletion of the claim although its identity could not be deleted, because only
// a person can delete the identity now. It emits a warning if the machine was registered.
func (s *scope) leaveIdentity(ctx context.Context, reason string) step.Result {
	machineIdentity := s.claim.Status.BootstrapInfo.Identity
	if machineIdentity.RegisteredAt == nil {
		return step.Done()
	}

	s.transitionEventf(ctx, corev1.EventTypeWarning, "IdentityNotRemoved", "Forget",
		"identity %s was not deleted: %s", machineIdentity.SPIFFEID, reason)

	return step.Done().WithReason("IdentityNotRemoved", reason)
}
