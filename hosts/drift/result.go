// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drift

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// reasonUnreachable is the reason of a failed contact if no better one is known.
const reasonUnreachable = "Unreachable"

// Outcome is the result of work at a host.
type Outcome struct {
	Action Action
	// Plan and Hash of what was pushed. A probe has only a Plan.
	Plan plan.Plan
	Hash string
	// Target that is recorded as refused if the host refuses it. If it is empty, Hash is used.
	Target string
	// Permit under which the work ran. It is 0 if there was none.
	Permit int64
	// AppliedDigests are the digests of the parts that the host got last.
	AppliedDigests []plan.Digest
	// HostKey that the host presented. It is empty if the connection did not get that far.
	HostKey string
	// Address at which the host was reached. It is empty if it was not reached.
	Address string
	// Result of a push, and States of a probe.
	Result push.Result
	States map[string]plan.State
	// OSVersion that the host reported. It is empty if the host was not queried. OSUpdate is the
	// state of an update of its operating system.
	OSVersion string
	OSUpdate  OSUpdateStatus
	// Err is the error of connecting or probing. The error of a push is in Result.
	Err  error
	Time time.Time
}

// Failure returns the error that kept the work from completing, or nil.
func (o Outcome) Failure() error {
	if o.Err != nil {
		return o.Err
	}

	return o.Result.Err
}

// Verdict classifies an outcome.
type Verdict string

const (
	// Succeeded means that the host took everything.
	Succeeded Verdict = "ok"
	// Refused means that the host did not take what was pushed.
	Refused Verdict = "refused"
	// Unreachable means that the connection failed or broke, so the state of the host is unknown.
	Unreachable Verdict = "unreachable"
	// HostKeyChanged means that the host presented a key other than the recorded one.
	HostKeyChanged Verdict = "host-key-changed"
)

// verdictOf classifies an outcome. Only a script that ran can have refused anything.
func verdictOf(out Outcome) Verdict {
	err := out.Failure()

	switch kind := ssh.KindOf(err); {
	case err == nil:
		return Succeeded
	case kind == ssh.HostKeyChanged:
		return HostKeyChanged
	case out.Action.IsPush() && (kind == ssh.Rejected || kind == ssh.TimedOut || kind == ssh.VerificationFailed):
		return Refused
	case out.Action == OSUpdate && isOSRefusal(err):
		return Refused
	default:
		return Unreachable
	}
}

// ApplyResult records the outcome of a job in the host's status, and returns the verdict on the outcome. It is
// pure and deterministic, so a reconcile may repeat it on the old status after a failed write.
func ApplyResult(host *v1alpha1.HostStatus, out Outcome, policy Policy) Verdict {
	contactTime := metav1.NewTime(out.Time).Rfc3339Copy()
	verdict := verdictOf(out)

	if host.SSHHostKey == "" && verdict != HostKeyChanged {
		host.SSHHostKey = out.HostKey
	}

	host.LastContactTime = &contactTime

	if out.Address != "" {
		host.ContactAddress = out.Address
	}

	if out.OSVersion != "" {
		host.OSVersion = out.OSVersion
	}

	if out.Action == OSUpdate {
		return applyOSUpdateStatus(host, out, verdict, contactTime)
	}

	switch verdict {
	case Unreachable:
		host.ContactAttempts++
		host.ContactReason, host.ContactMessage = contactReason(out.Failure()), out.Failure().Error()

		if host.UnreachableSince == nil {
			host.UnreachableSince = &contactTime
		}
	case HostKeyChanged:
		host.FailureReason, host.FailureMessage = v1alpha1.FailureHostKeyChanged, out.Failure().Error()
	case Succeeded, Refused:
		clearUnreachable(host)
	}

	switch {
	case out.Action == Probe && verdict == Succeeded:
		host.LastProbeTime = &contactTime
		host.LostParts = out.Plan.FindDrifted(out.AppliedDigests, out.Plan.LostParts(out.States))
	case out.Action.IsPush():
		applyPushResult(host, out, verdict, contactTime, policy)
	}

	return verdict
}

// contactReason returns why the connection failed or broke, as a condition reason.
func contactReason(err error) string {
	if kind := ssh.KindOf(err); kind != "" {
		return string(kind)
	}

	return errclass.ReasonOf(err, reasonUnreachable)
}

// clearUnreachable records that the host was reached.
func clearUnreachable(host *v1alpha1.HostStatus) {
	host.ContactAttempts, host.UnreachableSince = 0, nil
	host.ContactReason, host.ContactMessage = "", ""
}

// applyPushResult records the outcome of a push.
func applyPushResult(host *v1alpha1.HostStatus, out Outcome, verdict Verdict, contactTime metav1.Time, policy Policy) {
	host.Push = nil
	host.LastPermit = max(host.LastPermit, out.Permit)
	host.Parts = partsAfterPush(host.Parts, out)

	switch verdict {
	case Succeeded:
		host.Bootstrapped, host.HostConfigHash = true, out.Hash
		host.FailedHostConfigHash, host.LastUpdateFailureTime = "", nil
		host.UpdateAttempts, host.BootstrapAttempts = 0, 0
		host.LastProbeTime, host.LostParts = &contactTime, out.Result.LostParts
	case Refused:
		recordRefusal(host, out, contactTime, policy)
	case Unreachable, HostKeyChanged:
	}
}

// recordRefusal counts a failed attempt of a host at its target configuration. At the maximum number of
// attempts it sets the failure reason, which ends the retries.
func recordRefusal(host *v1alpha1.HostStatus, out Outcome, contactTime metav1.Time, policy Policy) {
	target := cmp.Or(out.Target, out.Hash)
	if host.FailedHostConfigHash != target {
		host.UpdateAttempts = 0
	}

	host.FailedHostConfigHash, host.LastUpdateFailureTime = target, &contactTime

	attempts, maxAttempts, reason := &host.UpdateAttempts, policy.MaxAttempts, v1alpha1.FailureUpdateExceededRetries
	if out.Action == FirstBoot {
		attempts, maxAttempts, reason = &host.BootstrapAttempts, policy.MaxBootstrapAttempts, v1alpha1.FailureBootstrapExceededRetries
	}

	// A count at the maximum means that a person has cleared the failure since then. Count from 0 again.
	if int(*attempts) >= maxAttempts {
		*attempts = 0
	}

	*attempts++

	if int(*attempts) >= maxAttempts {
		host.FailureReason = reason
		host.FailureMessage = fmt.Sprintf("%d attempts failed: %v", *attempts, out.Failure())
	}
}

// partsAfterPush returns the digests of the parts that the host is known to have after a push. It
// keeps applied and unchanged parts. Parts that failed or were not reached are dropped, so that
// they are pushed again.
func partsAfterPush(before []v1alpha1.HostPart, out Outcome) []v1alpha1.HostPart {
	if out.Err != nil {
		return before // nothing was sent
	}

	var after []v1alpha1.HostPart

	for _, digest := range out.Plan.Digests() {
		part := v1alpha1.HostPart{Label: digest.Label, SHA256: digest.SHA256}

		i := slices.IndexFunc(out.Result.Parts, func(p push.Part) bool { return p.Label == digest.Label })
		if i < 0 {
			continue
		}

		switch out.Result.Parts[i].Outcome {
		case push.Applied:
			after = append(after, part)
		case push.Unchanged:
			if previous := slices.IndexFunc(before, func(p v1alpha1.HostPart) bool { return p.Label == digest.Label }); previous >= 0 {
				after = append(after, before[previous])
			}
		case push.Failed, push.NotReached:
		}
	}

	return after
}
