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

// reasonNotAttested ends a machine whose VM stopped, without a word, before it had attested.
const reasonNotAttested = "AttestationFailed"

// attests says whether the claim's machine proves who it is.
func (s *scope) attests() bool { return vmspec.Attests(s.claim) }

// registered says whether the machine may be known to the identity provider.
func (s *scope) registered() bool { return s.attests() && s.times().CloneStarted != nil }

// errNoRegistry says that the operator has no SPIRE server.
func (s *scope) errNoRegistry() error {
	return errclass.New(errclass.Configuration, vmspec.ReasonAttestationUnavailable,
		"attest the machine of claim %s: the operator has no SPIRE server: set identity.spire in its configuration", s.claim.Name)
}

// identify puts on record who the machine will prove to be, if its template has an
// attestation. Nothing is registered before that.
func (s *scope) identify(ctx context.Context) error {
	info := s.claim.Status.BootstrapInfo
	if info.Identity != nil {
		return nil
	}

	if info.Identity = vmspec.Identity(s.claim, s.template, s.Settings); info.Identity == nil {
		return nil
	}

	if err := step.Save(ctx); err != nil {
		return fmt.Errorf("keep the identity of claim %s: %w", s.claim.Name, err)
	}

	return nil
}

// identityReady asks whether the identity provider takes us, before a machine is made that
// could not attest.
func identityReady(ctx context.Context, s *scope) step.Result {
	if s.times().CloneStarted != nil {
		return step.Done()
	}

	if s.Identity == nil {
		return connect.Outcome(s.errNoRegistry(), lookAgain, "")
	}

	if err := s.Identity.Check(ctx); err != nil {
		return connect.Outcome(err, lookAgain, "")
	}

	return step.Done()
}

// register makes the machine known to the identity provider; for one without an attestation
// it does nothing. A token's time runs from here, so that this is done when the cloud-init ISO
// is made and no sooner. That it may have been done is on record before it is.
func (s *scope) register(ctx context.Context) (identity.Attestation, error) {
	if err := s.identify(ctx); err != nil || !s.attests() {
		return identity.Attestation{}, err
	}

	if s.Identity == nil {
		return identity.Attestation{}, s.errNoRegistry()
	}

	if err := step.Save(ctx); err != nil {
		return identity.Attestation{}, fmt.Errorf("keep the state of claim %s: %w", s.claim.Name, err)
	}

	out, err := s.Identity.Register(ctx, vmspec.Registration(s.claim, s.template))
	if err != nil {
		return identity.Attestation{}, fmt.Errorf("register the machine of claim %s: %w", s.claim.Name, err)
	}

	s.claim.Status.BootstrapInfo.Identity.RegisteredAt = s.micro()

	return out, nil
}

// attest waits until the machine has proven who it is, by its own word or by the identity
// provider's. One that cannot prove it is ended.
func attest(ctx context.Context, s *scope) step.Result {
	own := s.claim.Status.BootstrapInfo.Identity

	switch {
	case own.AttestedAt != nil:
		return step.Done()
	case s.condemned(): // why is on record, and in the condition
		return s.remove(ctx, s.claim.Status.EndReason, "the machine did not prove who it is")
	}

	if s.times().Ready != nil || s.hasAttested(ctx) {
		own.AttestedAt = s.micro()
		s.eventf(ctx, corev1.EventTypeNormal, "Attested", "Attest", "the machine has proven to be %s", own.SPIFFEID)

		return step.Done()
	}

	if result, ended := s.refused(ctx, attestationRefused); ended {
		return result
	}

	gone, result := s.look(ctx)
	if !result.IsDone() {
		return result
	}

	if gone {
		s.stopped(ctx, reasonNotAttested)

		return step.Wait(atOnce, reasonNotAttested, "the VM stopped before the machine had proven who it is")
	}

	result, message := s.await("WaitingForAttestation", "the machine has to prove who it is and be online",
		"the machine has not proven who it is")
	if message != "" {
		return s.conclude(ctx, guest.ReasonAttestationTimeout, message)
	}

	return result
}

// condemned says whether an earlier pass has ended the machine. What ended before the VM was
// powered on was a mistake that somebody has fixed since.
func (s *scope) condemned() bool {
	ended, started := s.times().Ended, s.times().Started

	return ended != nil && started != nil && !ended.Time.Before(started.Time)
}

// atOnce is when the pass comes that acts on what this one has put on record.
const atOnce = time.Millisecond

// conclude ends a machine that still runs, in two passes: the first has the reason stand in
// the step's condition, which the deletion leaves as it is.
func (s *scope) conclude(ctx context.Context, reason, message string) step.Result {
	if s.condemned() {
		return s.remove(ctx, reason, message)
	}

	s.times().Ended = nil
	s.markEnded(reason)
	s.claim.Status.Phase = v1alpha1.MachineClaimDraining
	s.eventf(ctx, corev1.EventTypeWarning, reason, "Attest", "%s", message)

	return step.Wait(atOnce, reason, message)
}

// hasAttested says whether anybody has seen the machine attest.
func (s *scope) hasAttested(ctx context.Context) bool {
	info := s.claim.Status.BootstrapInfo

	switch guest.Phase(info.GuestPhase) {
	case guest.PhaseAttested, guest.PhaseDownloading, guest.PhaseConfiguring, guest.PhaseListening, guest.PhaseRunning,
		guest.PhaseFinished:
		return true
	case guest.PhaseFailed:
		return secretsRefused(info.GuestReason) // it came as far as to log in
	default:
	}

	if s.Identity == nil {
		return false
	}

	known, err := s.Identity.Attested(ctx, vmspec.IdentityOf(s.claim))

	return err == nil && known
}

// refused ends a machine that has said that it ends for one of the reasons.
func (s *scope) refused(ctx context.Context, is func(reason string) bool) (step.Result, bool) {
	info := s.claim.Status.BootstrapInfo
	if guest.Phase(info.GuestPhase) != guest.PhaseFailed || !is(info.GuestReason) {
		return step.Result{}, false
	}

	return s.conclude(ctx, info.GuestReason, info.GuestMessage), true
}

// attestationRefused says whether a machine that ended for the reason has no identity.
func attestationRefused(reason string) bool {
	switch reason {
	case guest.ReasonAttestationUnavailable, guest.ReasonAttestationRefused, guest.ReasonAttestationTimeout,
		guest.ReasonTrustDomainMismatch, guest.ReasonClockSkew, guest.ReasonIdentityMismatch:
		return true
	default:
		return false
	}
}

// secretsRefused says whether a machine that ended for the reason got no credential from the
// secrets manager.
func secretsRefused(reason string) bool {
	switch reason {
	case guest.ReasonSecretsRefused, guest.ReasonSecretMissing, guest.ReasonSecretsUnavailable:
		return true
	default:
		return false
	}
}

// noCredential says whether a machine that ended for the reason has nothing to run with.
func noCredential(reason string) bool { return attestationRefused(reason) || secretsRefused(reason) }

// evict ends the machine's identity while its VM still is there: what it has of an SVID runs
// out, and it gets no other. What cannot be done now is done once the VM is gone.
func evict(ctx context.Context, s *scope) step.Result {
	if s.Identity == nil {
		return step.Done()
	}

	if err := s.Identity.Remove(ctx, vmspec.IdentityOf(s.claim)); err != nil {
		return step.Done().WithReason("IdentityLeft", err.Error())
	}

	return step.Done()
}

// forget sees to it that nothing is left of the identity of a machine that is gone. A machine
// with a device identity may have come back since it was evicted.
func forget(ctx context.Context, s *scope) step.Result {
	own := s.claim.Status.BootstrapInfo.Identity

	if s.Identity == nil {
		return s.identityLeft(ctx, "the operator has no SPIRE server any more")
	}

	err := s.Identity.Remove(ctx, vmspec.IdentityOf(s.claim))

	switch {
	case err == nil:
		return step.Done()
	case identity.Is(err, identity.Unavailable):
		return step.Wait(lookAgain, connect.ReasonSPIREUnavailable, fmt.Sprintf("the VM is gone; identity %s is removed once the "+
			"SPIRE server is reached (without identity.spire in the operator's configuration it is left there): %v", own.SPIFFEID, err))
	default:
		return s.identityLeft(ctx, err.Error())
	}
}

// identityLeft lets the claim go without its identity's end, for only a person can do more.
func (s *scope) identityLeft(ctx context.Context, why string) step.Result {
	own := s.claim.Status.BootstrapInfo.Identity
	if own.RegisteredAt == nil {
		return step.Done()
	}

	s.saidf(ctx, corev1.EventTypeWarning, "IdentityLeft", "Forget", "identity %s was not removed: %s", own.SPIFFEID, why)

	return step.Done().WithReason("IdentityLeft", why)
}
