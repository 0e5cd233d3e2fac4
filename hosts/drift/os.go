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

// Why an update of an operating system failed, where the host itself does not say.
const (
	// ReasonTimedOut is an update that ran for too long.
	ReasonTimedOut = "UpdateTimedOut"
	// ReasonNotBack is a host that did not come back from its restart in time.
	ReasonNotBack = "HostNotBack"
	// ReasonNodeNotReady is a Node that was not ready in time after an update.
	ReasonNodeNotReady = "NodeNotReady"
	// ReasonRefused is a script that ended with an error.
	ReasonRefused = "UpdateFailed"
)

// UnknownOS is the version of an operating system that does not tell it.
const UnknownOS = "unknown"

// OSLook is what a look at an update of a host's operating system found.
type OSLook struct {
	// Label under which the update is offered.
	Label string
	// Running says that it is being installed, or that the host is about to restart, and Progress
	// what it said last.
	Running  bool
	Progress string
	// Reason and Message say why it failed.
	Reason, Message string
}

// looked notes a look at an update. A host that can't be reached may be restarting: only its
// time ends that.
func looked(host *v1alpha1.HostStatus, out Outcome, said Verdict, at metav1.Time) Verdict {
	update := host.OSUpdate
	if update == nil || update.EndedAt != nil {
		return said
	}

	switch said {
	case Unreached:
		if update.AwaySince == nil {
			update.AwaySince = &at
		}

		host.ContactReason, host.ContactMessage = reasonOf(out.Failure()), out.Failure().Error()

		return said
	case Changed:
		host.FailureReason, host.FailureMessage = v1alpha1.FailureHostKeyChanged, out.Failure().Error()
		endOS(host, at, v1alpha1.FailureHostKeyChanged, out.Failure().Error())

		return said
	case Refused:
		reached(host)
		endOS(host, at, ReasonRefused, out.Failure().Error())

		return said
	case Succeeded:
	}

	reached(host)

	update.AwaySince, update.Progress = nil, out.OS.Progress

	switch {
	case Reached(out.OSVersion, update.Version):
		host.LastProbeTime, host.LostParts = &at, out.Result.Lost
		endOS(host, at, "", "")
	case out.OS.Reason != "":
		endOS(host, at, out.OS.Reason, out.OS.Message)

		return Refused
	case out.OS.Label != "":
		update.Label = out.OS.Label
	}

	return said
}

func endOS(host *v1alpha1.HostStatus, at metav1.Time, reason, message string) {
	host.OSUpdate.EndedAt, host.OSUpdate.Reason, host.OSUpdate.Message = &at, reason, message
}

// FailOS ends an update for want of something that is not the host's word.
func FailOS(host *v1alpha1.HostStatus, now time.Time, reason, message string) {
	endOS(host, metav1.NewTime(now).Rfc3339Copy(), reason, message)
}

// FinishOS notes what became of an update that has ended, and uses up its permit. It counts as
// refused where it failed, as a configuration does.
func FinishOS(host *v1alpha1.HostStatus, policy Policy) Verdict {
	update, said := host.OSUpdate, Succeeded

	if update.Reason != "" {
		said = Refused
		err := errors.New(update.Reason + ": " + update.Message)
		err = fmt.Errorf("update to macOS %s: %w", update.Version, err)
		noteRefusal(host, Outcome{Action: OSUpdate, Target: host.Push.Hash, Err: err}, *update.EndedAt, policy)
	} else {
		host.FailedHostConfigHash, host.LastUpdateFailureTime, host.UpdateAttempts = "", nil, 0
	}

	host.LastPermit = max(host.LastPermit, host.Push.Permit)
	host.Push, host.OSUpdate = nil, nil

	return said
}

// refusesOS says whether an error of a look is the host's word.
func refusesOS(err error) bool {
	kind := ssh.KindOf(err)

	return kind == ssh.Rejected || kind == ssh.NotKept
}
