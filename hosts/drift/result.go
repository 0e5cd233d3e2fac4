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

// reasonUnreached is why nobody got in when nothing more is known.
const reasonUnreached = "Unreachable"

// Outcome is what became of work at a host.
type Outcome struct {
	Action Action
	// Plan and Hash of what was pushed; Plan alone for a probe.
	Plan plan.Plan
	Hash string
	// Target that counts as refused where it is; Hash if empty.
	Target string
	// Permit that it ran under; 0 for none.
	Permit int64
	// Has are the digests of what the host got last.
	Has []plan.Digest
	// HostKey that the host has shown; empty if it did not get that far.
	HostKey string
	// Address where it was reached; empty if it was not.
	Address string
	// Result of a push, States of a probe.
	Result push.Result
	States map[string]plan.State
	// OSVersion that the host says it has; empty where it was not asked. OS is what a look at an
	// update of its operating system found.
	OSVersion string
	OS        OSLook
	// Err of connecting or probing; that of a push is in its result.
	Err error
	At  time.Time
}

// Failure is why not all of the work was done.
func (o Outcome) Failure() error {
	if o.Err != nil {
		return o.Err
	}

	return o.Result.Err
}

// Verdict is what an outcome says of the host.
type Verdict string

const (
	// Succeeded is a host that took all of it.
	Succeeded Verdict = "ok"
	// Refused is a host that did not take what was pushed.
	Refused Verdict = "refused"
	// Unreached is a host that nothing is known of, for nobody got in or to an end.
	Unreached Verdict = "unreachable"
	// Changed is a host that is another one by its key.
	Changed Verdict = "host-key-changed"
)

// judge says what an outcome means: only a script that ran can have refused anything.
func judge(out Outcome) Verdict {
	err := out.Failure()

	switch kind := ssh.KindOf(err); {
	case err == nil:
		return Succeeded
	case kind == ssh.HostKeyChanged:
		return Changed
	case out.Action.Pushes() && (kind == ssh.Rejected || kind == ssh.TimedOut || kind == ssh.NotKept):
		return Refused
	case out.Action == OSUpdate && refusesOS(err):
		return Refused
	default:
		return Unreached
	}
}

// ApplyResult notes what became of a job in the host's status. It is pure, and does the same
// whenever it is done again with the same outcome on the same status.
func ApplyResult(host *v1alpha1.HostStatus, out Outcome, policy Policy) Verdict {
	at := metav1.NewTime(out.At).Rfc3339Copy()
	said := judge(out)

	if host.SSHHostKey == "" && said != Changed {
		host.SSHHostKey = out.HostKey
	}

	host.LastContactTime = &at

	if out.Address != "" {
		host.ContactAddress = out.Address
	}

	if out.OSVersion != "" {
		host.OSVersion = out.OSVersion
	}

	if out.Action == OSUpdate {
		return looked(host, out, said, at)
	}

	switch said {
	case Unreached:
		host.ContactAttempts++
		host.ContactReason, host.ContactMessage = reasonOf(out.Failure()), out.Failure().Error()

		if host.UnreachableSince == nil {
			host.UnreachableSince = &at
		}
	case Changed:
		host.FailureReason, host.FailureMessage = v1alpha1.FailureHostKeyChanged, out.Failure().Error()
	case Succeeded, Refused:
		reached(host)
	}

	switch {
	case out.Action == Probe && said == Succeeded:
		host.LastProbeTime = &at
		host.LostParts = push.Drifted(out.Plan, out.Has, out.States)
	case out.Action.Pushes():
		pushed(host, out, said, at, policy)
	}

	return said
}

// reasonOf is why nobody got in, or to an end, in one word.
func reasonOf(err error) string {
	if kind := ssh.KindOf(err); kind != "" {
		return string(kind)
	}

	return errclass.Reason(err, reasonUnreached)
}

// reached notes that the host could be reached.
func reached(host *v1alpha1.HostStatus) {
	host.ContactAttempts, host.UnreachableSince = 0, nil
	host.ContactReason, host.ContactMessage = "", ""
}

// pushed notes what became of a push.
func pushed(host *v1alpha1.HostStatus, out Outcome, said Verdict, at metav1.Time, policy Policy) {
	host.Push = nil
	host.LastPermit = max(host.LastPermit, out.Permit)
	host.Parts = partsAfter(host.Parts, out)

	switch said {
	case Succeeded:
		host.Bootstrapped, host.HostConfigHash = true, out.Hash
		host.FailedHostConfigHash, host.LastUpdateFailureTime = "", nil
		host.UpdateAttempts, host.BootstrapAttempts = 0, 0
		host.LastProbeTime, host.LostParts = &at, out.Result.Lost
	case Refused:
		noteRefusal(host, out, at, policy)
	case Unreached, Changed:
	}
}

func noteRefusal(host *v1alpha1.HostStatus, out Outcome, at metav1.Time, policy Policy) {
	target := cmp.Or(out.Target, out.Hash)
	if host.FailedHostConfigHash != target {
		host.UpdateAttempts = 0
	}

	host.FailedHostConfigHash, host.LastUpdateFailureTime = target, &at

	attempts, most, reason := &host.UpdateAttempts, policy.MaxAttempts, v1alpha1.FailureUpdateExceededRetries
	if out.Action == FirstBoot {
		attempts, most, reason = &host.BootstrapAttempts, policy.MaxBoots, v1alpha1.FailureBootstrapExceededRetries
	}

	// Somebody has cleared a failure: it starts anew.
	if int(*attempts) >= most {
		*attempts = 0
	}

	*attempts++

	if int(*attempts) >= most {
		host.FailureReason = reason
		host.FailureMessage = fmt.Sprintf("it was tried %d times: %v", *attempts, out.Failure())
	}
}

// partsAfter are the digests of what the host has for sure after a push: what was applied is
// there, what failed or was not reached has to be pushed again, the rest is as it was.
func partsAfter(before []v1alpha1.HostPart, out Outcome) []v1alpha1.HostPart {
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
			if had := slices.IndexFunc(before, func(p v1alpha1.HostPart) bool { return p.Label == digest.Label }); had >= 0 {
				after = append(after, before[had])
			}
		case push.Failed, push.NotReached:
		}
	}

	return after
}
