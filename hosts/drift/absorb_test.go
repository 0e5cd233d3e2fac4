// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package drift_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hosts/drift"
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/push"
	"github.com/hyperfleet/hyperfleet/hosts/ssh"
)

func threeParts(t *testing.T) plan.Plan {
	t.Helper()

	part := func(label string) plan.Part {
		return plan.Part{
			Label: label, Kind: plan.File, Schedule: plan.Always, Path: "/etc/" + label, Mode: 0o644, Owner: "root:root",
			Content: plan.NewText(label), Apply: "cat >/etc/" + label, Probe: "test -e /etc/" + label,
		}
	}

	p, err := plan.New(part("a"), part("b"), part("c"))
	if err != nil {
		t.Fatal(err)
	}

	return p
}

// After a push, the status contains only parts that are known to be on the host. The
// configuration's hash is recorded only after a complete push.
func TestApplyResult(t *testing.T) {
	t.Parallel()

	p := threeParts(t)
	sums := map[string]string{}

	for _, d := range p.Digests() {
		sums[d.Label] = d.SHA256
	}

	recorded := []v1alpha1.HostPart{{Label: "a", SHA256: "old"}, {Label: "b", SHA256: "old"}, {Label: "c", SHA256: sums["c"]}, {Label: "gone", SHA256: "x"}}
	fault := func(kind ssh.Kind) error { return &ssh.Error{Kind: kind, Message: "because"} }
	result := func(err error, outcomes ...push.Outcome) push.Result {
		out := push.Result{Err: err}
		for i, o := range outcomes {
			out.Parts = append(out.Parts, push.Part{Label: string(rune('a' + i)), Outcome: o})
		}

		return out
	}

	cases := map[string]struct {
		what    drift.Action
		err     error
		result  push.Result
		verdict drift.Verdict
		parts   map[string]string
		want    v1alpha1.HostStatus
	}{
		"all applied": {
			drift.Update, nil, result(nil, push.Applied, push.Applied, push.Unchanged),
			drift.Succeeded, sums,
			v1alpha1.HostStatus{Bootstrapped: true, HostConfigHash: "new", LastPermit: 7},
		},
		"the first part was rejected": {
			drift.Update, nil, result(fault(ssh.Rejected), push.Failed, push.NotReached, push.Unchanged),
			drift.Refused, map[string]string{"c": sums["c"]},
			v1alpha1.HostStatus{Bootstrapped: true, LastPermit: 7, FailedHostConfigHash: "new", UpdateAttempts: 1},
		},
		"the second part timed out": {
			drift.Repair, nil, result(fault(ssh.TimedOut), push.Applied, push.Failed, push.Unchanged),
			drift.Refused, map[string]string{"a": sums["a"], "c": sums["c"]},
			v1alpha1.HostStatus{Bootstrapped: true, LastPermit: 7, FailedHostConfigHash: "new", UpdateAttempts: 1},
		},
		"connection lost during the push": {
			drift.Update, nil, result(fault(ssh.Unreachable), push.Applied, push.Failed, push.Unchanged),
			drift.Unreachable, map[string]string{"a": sums["a"], "c": sums["c"]},
			v1alpha1.HostStatus{Bootstrapped: true, LastPermit: 7, ContactAttempts: 1, ContactReason: "Unreachable"},
		},
		"login refused": {
			drift.Update, fault(ssh.AuthRefused), push.Result{},
			drift.Unreachable, map[string]string{"a": "old", "b": "old", "c": sums["c"], "gone": "x"},
			v1alpha1.HostStatus{Bootstrapped: true, LastPermit: 7, ContactAttempts: 1, ContactReason: "AuthRefused"},
		},
		"another host": {
			drift.Update, fault(ssh.HostKeyChanged), push.Result{},
			drift.HostKeyChanged, map[string]string{"a": "old", "b": "old", "c": sums["c"], "gone": "x"},
			v1alpha1.HostStatus{Bootstrapped: true, LastPermit: 7, FailureReason: v1alpha1.FailureHostKeyChanged},
		},
		"a first boot was rejected": {
			drift.FirstBoot, nil, result(fault(ssh.VerificationFailed), push.Applied, push.Applied, push.Failed),
			drift.Refused, map[string]string{"a": sums["a"], "b": sums["b"]},
			v1alpha1.HostStatus{LastPermit: 7, FailedHostConfigHash: "new", BootstrapAttempts: 1},
		},
		"a failed probe is no rejection": {
			drift.Probe, fault(ssh.Rejected), push.Result{},
			drift.Unreachable, map[string]string{"a": "old", "b": "old", "c": sums["c"], "gone": "x"},
			v1alpha1.HostStatus{Bootstrapped: true, ContactAttempts: 1, ContactReason: "Rejected"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			host := v1alpha1.HostStatus{
				Bootstrapped: tc.what != drift.FirstBoot, SSHHostKey: "SHA256:x", Parts: recorded,
				Push: &v1alpha1.HostPush{Permit: 7},
			}
			policy := drift.Policy{MaxAttempts: 5, MaxBootstrapAttempts: 8, BaseBackoff: time.Minute, MaxBackoff: time.Hour}
			out := drift.Outcome{
				Action: tc.what, Plan: p, Hash: "new", Permit: 7, Err: tc.err, Result: tc.result, Time: time.Unix(1, 0),
			}

			if verdict := drift.ApplyResult(&host, out, policy); verdict != tc.verdict {
				t.Errorf("verdict %s, want %s", verdict, tc.verdict)
			}

			got := map[string]string{}
			for _, part := range host.Parts {
				got[part.Label] = part.SHA256
			}

			if diff := cmp.Diff(tc.parts, got); diff != "" {
				t.Error(diff)
			}

			if (host.Push == nil) != tc.what.IsPush() {
				t.Errorf("the status still has a push: %+v", host.Push)
			}

			left := v1alpha1.HostStatus{
				Bootstrapped: host.Bootstrapped, HostConfigHash: host.HostConfigHash, LastPermit: host.LastPermit,
				FailedHostConfigHash: host.FailedHostConfigHash, UpdateAttempts: host.UpdateAttempts, BootstrapAttempts: host.BootstrapAttempts,
				ContactAttempts: host.ContactAttempts, ContactReason: host.ContactReason, FailureReason: host.FailureReason,
			}
			if diff := cmp.Diff(tc.want, left); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The first key that a host presents is pinned even if the login fails. A changed key is never
// pinned.
func TestKeysArePinnedOnce(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		pinned string
		err    error
		want   string
	}{
		"first connection":  {"", nil, "SHA256:shown"},
		"login refused":     {"", &ssh.Error{Kind: ssh.AuthRefused}, "SHA256:shown"},
		"changed":           {"SHA256:pinned", &ssh.Error{Kind: ssh.HostKeyChanged, Err: ssh.ErrHostKeyChanged}, "SHA256:pinned"},
		"changed, unpinned": {"", &ssh.Error{Kind: ssh.HostKeyChanged}, ""},
		"another error":     {"SHA256:pinned", errors.New("no route"), "SHA256:pinned"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			host := v1alpha1.HostStatus{SSHHostKey: tc.pinned}
			drift.ApplyResult(&host, drift.Outcome{Action: drift.Connect, HostKey: "SHA256:shown", Err: tc.err}, drift.Policy{})

			if host.SSHHostKey != tc.want {
				t.Errorf("pinned %q, want %q", host.SSHHostKey, tc.want)
			}
		})
	}
}
