// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"errors"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
)

// Reasons why an update of an operating system failed, if the host itself reports none.
const (
	// ReasonTimedOut means that an update ran for too long.
	ReasonTimedOut = "UpdateTimedOut"
	// ReasonRestartTimedOut means that a host was not reachable in time after its restart.
	ReasonRestartTimedOut = "RestartTimedOut"
	// ReasonNodeNotReady means that a Node was not ready in time after an update.
	ReasonNodeNotReady = "NodeNotReady"
	// ReasonUpdateFailed means that an update script ended with an error.
	ReasonUpdateFailed = "UpdateFailed"
)

// UnknownOS is recorded as the version of an operating system that did not report its version.
const UnknownOS = "unknown"

// OSUpdateStatus is the state of an update of a host's operating system, as the host reported it.
type OSUpdateStatus struct {
	// Label under which the update is offered.
	Label string
	// Running is true while the update is being installed or the host is about to restart. Progress
	// is the last line that the installation printed.
	Running  bool
	Progress string
	// Reason and Message say why the update failed. They are empty if it has not failed.
	Reason, Message string
}

// applyOSUpdateStatus records the state of an update in the host's status. It returns the given verdict,
// or Refused if the contact succeeded and the host reported that the update failed. A host that is
// unreachable may be restarting, so an unreachable host never ends the update. Only the update's
// timeouts do.
func applyOSUpdateStatus(host *v1alpha1.HostStatus, out Outcome, verdict Verdict, contactTime metav1.Time) Verdict {
	update := host.OSUpdate
	if update == nil || update.EndedAt != nil {
		return verdict
	}

	switch verdict {
	case Unreachable:
		if update.AwaySince == nil {
			update.AwaySince = &contactTime
		}

		host.ContactReason, host.ContactMessage = contactReason(out.Failure()), out.Failure().Error()

		return verdict
	case HostKeyChanged:
		host.FailureReason, host.FailureMessage = v1alpha1.FailureHostKeyChanged, out.Failure().Error()
		endOSUpdate(host, contactTime, v1alpha1.FailureHostKeyChanged, out.Failure().Error())

		return verdict
	case Refused:
		clearUnreachable(host)
		endOSUpdate(host, contactTime, ReasonUpdateFailed, out.Failure().Error())

		return verdict
	case Succeeded:
	}

	clearUnreachable(host)

	update.AwaySince, update.Progress = nil, out.OSUpdate.Progress

	switch {
	case IsAtLeast(out.OSVersion, update.Version):
		host.LastProbeTime, host.LostParts = &contactTime, out.Result.LostParts
		endOSUpdate(host, contactTime, "", "")
	case out.OSUpdate.Reason != "":
		endOSUpdate(host, contactTime, out.OSUpdate.Reason, out.OSUpdate.Message)

		return Refused
	case out.OSUpdate.Label != "":
		update.Label = out.OSUpdate.Label
	}

	return verdict
}

// endOSUpdate records that the update has ended. An empty reason means that it succeeded.
func endOSUpdate(host *v1alpha1.HostStatus, contactTime metav1.Time, reason, message string) {
	host.OSUpdate.EndedAt, host.OSUpdate.Reason, host.OSUpdate.Message = &contactTime, reason, message
}

// FailOSUpdate ends an update for a reason that the host itself did not report.
func FailOSUpdate(host *v1alpha1.HostStatus, now time.Time, reason, message string) {
	endOSUpdate(host, metav1.NewTime(now).Rfc3339Copy(), reason, message)
}

// FinishOSUpdate records the result of an update that has ended, and uses up its permit. A failed
// update counts as a refusal, as a failed push of a configuration does.
func FinishOSUpdate(host *v1alpha1.HostStatus, policy Policy) Verdict {
	update, verdict := host.OSUpdate, Succeeded

	if update.Reason != "" {
		verdict = Refused
		err := errors.New(update.Reason + ": " + update.Message)
		err = fmt.Errorf("update to macOS %s: %w", update.Version, err)
		recordRefusal(host, Outcome{Action: OSUpdate, Target: host.Push.Hash, Err: err}, *update.EndedAt, policy)
	} else {
		host.FailedHostConfigHash, host.LastUpdateFailureTime, host.UpdateAttempts = "", nil, 0
	}

	host.LastPermit = max(host.LastPermit, host.Push.Permit)
	host.Push, host.OSUpdate = nil, nil

	return verdict
}

// isOSRefusal returns true if a step of an update ran on the host and failed there. Other errors, such as
// a lost connection, say nothing about the update.
func isOSRefusal(err error) bool {
	kind := ssh.KindOf(err)

	return kind == ssh.Rejected || kind == ssh.VerificationFailed
}
