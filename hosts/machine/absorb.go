// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// verdict is what an outcome says of the host.
type verdict string

const (
	succeeded verdict = "ok"
	// refused is a host that did not take what was pushed.
	refused verdict = "refused"
	// unreached is a host that nothing is known of, for nobody got in or to an end.
	unreached verdict = "unreachable"
	// changed is a host that is another one by its key.
	changed verdict = "host-key-changed"
)

// judge says what an outcome means: only a script that ran can have refused anything.
func judge(out outcome) verdict {
	err := out.failure()

	switch kind := ssh.KindOf(err); {
	case err == nil:
		return succeeded
	case kind == ssh.HostKeyChanged:
		return changed
	case out.job.what.Pushes() && (kind == ssh.Rejected || kind == ssh.TimedOut || kind == ssh.NotKept):
		return refused
	default:
		return unreached
	}
}

// absorb notes what became of a job in the host's status. It is pure, and does the same
// whenever it is done again with the same outcome on the same status.
func absorb(host *v1alpha1.HostStatus, out outcome, policy drift.Policy) verdict {
	at := metav1.NewTime(out.at).Rfc3339Copy()
	said := judge(out)

	if host.SSHHostKey == "" && said != changed {
		host.SSHHostKey = out.hostKey
	}

	host.LastContactTime = &at

	switch said {
	case unreached:
		host.ContactAttempts++
		host.ContactReason, host.ContactMessage = reasonOf(out.failure()), out.failure().Error()

		if host.UnreachableSince == nil {
			host.UnreachableSince = &at
		}
	case changed:
		host.FailureReason, host.FailureMessage = v1alpha1.FailureHostKeyChanged, out.failure().Error()
	case succeeded, refused:
		reached(host)
	}

	switch {
	case out.job.what == probe && said == succeeded:
		host.LastProbeTime = &at
		host.LostParts = push.Drifted(out.job.plan, out.job.has, out.states)
	case out.job.what.Pushes():
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
func pushed(host *v1alpha1.HostStatus, out outcome, said verdict, at metav1.Time, policy drift.Policy) {
	host.Push = nil
	host.LastPermit = max(host.LastPermit, out.job.permit)
	host.Parts = partsAfter(host.Parts, out)

	switch said {
	case succeeded:
		host.Bootstrapped, host.HostConfigHash = true, out.job.hash
		host.FailedHostConfigHash, host.LastUpdateFailureTime = "", nil
		host.UpdateAttempts, host.BootstrapAttempts = 0, 0
		host.LastProbeTime, host.LostParts = &at, out.result.Lost
	case refused:
		noteRefusal(host, out, at, policy)
	case unreached, changed:
	}
}

func noteRefusal(host *v1alpha1.HostStatus, out outcome, at metav1.Time, policy drift.Policy) {
	if host.FailedHostConfigHash != out.job.hash {
		host.UpdateAttempts = 0
	}

	host.FailedHostConfigHash, host.LastUpdateFailureTime = out.job.hash, &at

	attempts, most, reason := &host.UpdateAttempts, policy.MaxAttempts, v1alpha1.FailureUpdateExceededRetries
	if out.job.what == drift.FirstBoot {
		attempts, most, reason = &host.BootstrapAttempts, policy.MaxBoots, v1alpha1.FailureBootstrapExceededRetries
	}

	// Somebody has cleared a failure: it starts anew.
	if int(*attempts) >= most {
		*attempts = 0
	}

	*attempts++

	if int(*attempts) >= most {
		host.FailureReason = reason
		host.FailureMessage = fmt.Sprintf("it was tried %d times: %v", *attempts, out.failure())
	}
}

// partsAfter are the digests of what the host has for sure after a push: what was applied is
// there, what failed or was not reached has to be pushed again, the rest is as it was.
func partsAfter(before []v1alpha1.HostPart, out outcome) []v1alpha1.HostPart {
	if out.err != nil {
		return before // nothing was sent
	}

	var after []v1alpha1.HostPart

	for _, digest := range out.job.plan.Digests() {
		part := v1alpha1.HostPart{Label: digest.Label, SHA256: digest.SHA256}

		i := slices.IndexFunc(out.result.Parts, func(p push.Part) bool { return p.Label == digest.Label })
		if i < 0 {
			continue
		}

		switch out.result.Parts[i].Outcome {
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

// digests are the parts that a host is known to have, as package push takes them.
func digests(parts []v1alpha1.HostPart) []plan.Digest {
	var out []plan.Digest
	for _, part := range parts {
		out = append(out, plan.Digest{Label: part.Label, SHA256: part.SHA256})
	}

	return out
}
