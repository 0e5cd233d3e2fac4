// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machineclaim

import (
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

func TestDeadline(t *testing.T) {
	t.Parallel()

	birth := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := birth.Add

	cases := map[string]struct {
		limit   limit
		moments moments
		now     time.Time
		reason  string
		next    time.Duration
	}{
		"no limits never end a machine": {
			moments: moments{created: birth, ready: birth}, now: at(1000 * time.Hour),
		},
		"lifetime ends a busy machine as well": {
			limit:   limit{maxLifetime: time.Hour},
			moments: moments{created: birth, ready: at(time.Minute), jobStarted: at(2 * time.Minute)},
			now:     at(time.Hour), reason: ReasonMaxLifetime,
		},
		"before the lifetime is over, it says when to look": {
			limit: limit{maxLifetime: time.Hour}, moments: moments{created: birth, ready: birth},
			now: at(50 * time.Minute), next: 10 * time.Minute,
		},
		"idle counts from ready": {
			limit: limit{idle: 5 * time.Minute}, moments: moments{created: birth, ready: at(time.Minute)},
			now: at(6 * time.Minute), reason: ReasonIdleTimeout,
		},
		"idle does not count once a job was taken": {
			limit:   limit{idle: 5 * time.Minute},
			moments: moments{created: birth, ready: birth, jobStarted: at(time.Minute)},
			now:     at(time.Hour),
		},
		"job counts from its start": {
			limit:   limit{job: 30 * time.Minute},
			moments: moments{created: birth, ready: birth, jobStarted: at(10 * time.Minute)},
			now:     at(39 * time.Minute), next: time.Minute,
		},
		"job over its time": {
			limit:   limit{job: 30 * time.Minute},
			moments: moments{created: birth, ready: birth, jobStarted: at(10 * time.Minute)},
			now:     at(40 * time.Minute), reason: ReasonJobTimeout,
		},
		"the nearest limit is looked at first": {
			limit:   limit{maxLifetime: time.Hour, idle: 10 * time.Minute},
			moments: moments{created: birth, ready: at(5 * time.Minute)}, now: at(6 * time.Minute), next: 9 * time.Minute,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got := deadline(tc.limit, tc.moments, tc.now)
			if got.reason != tc.reason {
				t.Errorf("reason = %q, want %q", got.reason, tc.reason)
			}

			if tc.reason == "" && got.next != tc.next {
				t.Errorf("next = %s, want %s", got.next, tc.next)
			}

			if tc.reason != "" && got.message == "" {
				t.Error("a machine is ended without a word")
			}
		})
	}
}

// A machine that never had a job has done none: success is counted by these words, and failures
// of pools by what is not among them.
func TestHowItEnded(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		phase       guest.Phase
		reason, job string
		want        string
	}{
		"it ran its job":                      {guest.PhaseFinished, guest.ReasonJobDone, "", "JobDone"},
		"the platform says so":                {guest.PhaseRunning, "", "gh-7", "JobDone"},
		"an older service gives no reason":    {guest.PhaseFinished, "", "", "JobDone"},
		"its job was taken by somebody else":  {guest.PhaseFinished, guest.ReasonJobGone, "", "JobGone"},
		"no job came":                         {guest.PhaseFinished, guest.ReasonIdleTimeout, "", "IdleTimeout"},
		"it was told to stop":                 {guest.PhaseFinished, guest.ReasonTerminated, "", "Terminated"},
		"it was told to stop in its job":      {guest.PhaseFinished, guest.ReasonTerminated, "gh-7", "Terminated"},
		"it failed":                           {guest.PhaseFailed, guest.ReasonRunnerFailed, "gh-7", "GuestFailed"},
		"it says nothing":                     {guest.PhaseListening, "", "", "VMStopped"},
		"a word of its own":                   {guest.PhaseFinished, "Whatever", "", "VMStopped"},
		"a word of its own, and it had a job": {guest.PhaseFinished, "Whatever", "gh-7", "JobDone"},
	} {
		got := howItEnded(&v1alpha1.BootstrapInfo{GuestPhase: string(tc.phase), GuestReason: tc.reason, Job: tc.job})
		if got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
}
