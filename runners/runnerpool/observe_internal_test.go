// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

func micro(t time.Time) *metav1.MicroTime {
	m := metav1.NewMicroTime(t)

	return &m
}

func TestStateOf(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	runner := &v1alpha1.BootstrapInfo{RunnerName: "r"}
	vm := &v1alpha1.VMReference{VMID: "100"}

	cases := map[string]struct {
		status  v1alpha1.MachineClaimStatus
		deleted bool
		standby bool
		job     v1alpha1.JobState
		want    demand.ClaimState
	}{
		"nothing made yet":                 {want: demand.ClaimPending},
		"id on record":                     {status: v1alpha1.MachineClaimStatus{VMRef: vm}, want: demand.ClaimBooting},
		"runner online":                    {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner, Times: &v1alpha1.MachineTimes{Ready: micro(now)}}, want: demand.ClaimIdle},
		"runner has a job":                 {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner}, job: v1alpha1.JobRunning, want: demand.ClaimBusy},
		"the claim knows of a job first":   {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner, Times: &v1alpha1.MachineTimes{JobStarted: micro(now)}}, want: demand.ClaimBusy},
		"its job is over, the VM not yet":  {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner, Times: &v1alpha1.MachineTimes{JobStarted: micro(now)}}, job: v1alpha1.JobCompleted, want: demand.ClaimFinishing},
		"it says that it took a job":       {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: "other", GuestPhase: "Running"}}, want: demand.ClaimBusy},
		"it says that it is done":          {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: "other", GuestPhase: "Finished"}, Times: &v1alpha1.MachineTimes{Ready: micro(now)}}, want: demand.ClaimFinishing},
		"on standby, nothing made yet":     {standby: true, want: demand.ClaimStandby},
		"on standby, id on record":         {standby: true, status: v1alpha1.MachineClaimStatus{VMRef: vm}, want: demand.ClaimStandby},
		"its life is over":                 {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner, Times: &v1alpha1.MachineTimes{Ready: micro(now), Ended: micro(now)}}, want: demand.ClaimFinishing},
		"being deleted, whatever else":     {status: v1alpha1.MachineClaimStatus{VMRef: vm, BootstrapInfo: runner}, deleted: true, job: v1alpha1.JobRunning, want: demand.ClaimFinishing},
		"failed before it had any machine": {status: v1alpha1.MachineClaimStatus{Phase: v1alpha1.MachineClaimFailed, Times: &v1alpha1.MachineTimes{Ended: micro(now)}}, want: demand.ClaimFinishing},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim := &v1alpha1.MachineClaim{Spec: v1alpha1.MachineClaimSpec{Standby: tc.standby}, Status: tc.status}
			if tc.deleted {
				claim.DeletionTimestamp = &metav1.Time{Time: now}
			}

			if got := stateOf(claim, map[string]v1alpha1.JobState{"r": tc.job}); got.State != tc.want {
				t.Errorf("stateOf() = %s, want %s", got.State, tc.want)
			}
		})
	}
}

// A machine that has run its job and powers off is not idle, and its job is not queued any
// more, though the CI platform's word is missing.
func TestJobThatOnlyItsMachineTellsOf(t *testing.T) {
	t.Parallel()

	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	claim := func(phase guest.Phase, reason string) v1alpha1.MachineClaim {
		return v1alpha1.MachineClaim{Status: v1alpha1.MachineClaimStatus{
			BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: "r", GuestPhase: string(phase), GuestReason: reason},
			Times:         &v1alpha1.MachineTimes{Ready: micro(now.Add(-time.Minute))},
		}}
	}

	for name, tc := range map[string]struct {
		claim v1alpha1.MachineClaim
		state demand.ClaimState
		taken int
	}{
		"it waits for one": {claim(guest.PhaseListening, ""), demand.ClaimIdle, 0},
		"it runs one":      {claim(guest.PhaseRunning, ""), demand.ClaimBusy, 1},
		"it has run one":   {claim(guest.PhaseFinished, guest.ReasonJobDone), demand.ClaimFinishing, 1},
		"it had none":      {claim(guest.PhaseFinished, guest.ReasonIdleTimeout), demand.ClaimFinishing, 0},
		"it failed":        {claim(guest.PhaseFailed, "RunnerMissing"), demand.ClaimFinishing, 0},
	} {
		var starts unconfirmedStarts

		taken := starts.count([]v1alpha1.MachineClaim{tc.claim}, nil, now)[""]
		if state := stateOf(&tc.claim, nil).State; state != tc.state || taken != tc.taken {
			t.Errorf("%s: it is %s, and took %d jobs; want %s, %d", name, state, taken, tc.state, tc.taken)
		}
	}
}

func TestCountFailuresCountsEachEndOnce(t *testing.T) {
	t.Parallel()

	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	at := func(seconds int) *metav1.MicroTime { return micro(start.Add(time.Duration(seconds) * time.Second)) }
	claim := func(times v1alpha1.MachineTimes) v1alpha1.MachineClaim {
		return v1alpha1.MachineClaim{Status: v1alpha1.MachineClaimStatus{Times: &times}}
	}

	var status v1alpha1.RunnerPoolStatus

	claims := []v1alpha1.MachineClaim{
		claim(v1alpha1.MachineTimes{Ended: at(10)}),
		claim(v1alpha1.MachineTimes{Ended: at(20)}),
		claim(v1alpha1.MachineTimes{Ready: at(5), Ended: at(30)}), // it was of use: no failure
		{}, // nothing known yet
		{ // never started
			Spec:   v1alpha1.MachineClaimSpec{Standby: true},
			Status: v1alpha1.MachineClaimStatus{Times: &v1alpha1.MachineTimes{Ended: at(30)}},
		},
		{ // its job went away
			Status: v1alpha1.MachineClaimStatus{EndReason: guest.ReasonJobGone, Times: &v1alpha1.MachineTimes{Ended: at(30)}},
		},
	}

	countFailures(&status, claims)

	if status.FailedClaims != 2 {
		t.Fatalf("failed claims = %d, want 2", status.FailedClaims)
	}

	countFailures(&status, claims)

	if status.FailedClaims != 2 {
		t.Errorf("a second look counted again: %d", status.FailedClaims)
	}

	claims = append(claims, claim(v1alpha1.MachineTimes{Ended: at(40)}))
	countFailures(&status, claims)

	if status.FailedClaims != 3 {
		t.Errorf("a new failure: %d, want 3", status.FailedClaims)
	}

	countFailures(&status, append(claims, claim(v1alpha1.MachineTimes{Ready: at(50)})))

	if status.FailedClaims != 0 {
		t.Errorf("a machine got ready: %d, want 0", status.FailedClaims)
	}
}

func TestAMachineAheadOfItsWebhookStandsForAJob(t *testing.T) {
	t.Parallel()

	var memory unconfirmedStarts

	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	claims := []v1alpha1.MachineClaim{
		{Status: v1alpha1.MachineClaimStatus{BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: "a", GuestPhase: "Running"}}},
		{Status: v1alpha1.MachineClaimStatus{BootstrapInfo: &v1alpha1.BootstrapInfo{RunnerName: "b", GuestPhase: "Listening"}}},
	}

	steps := []struct {
		name   string
		claims []v1alpha1.MachineClaim
		jobs   map[string]v1alpha1.JobState
		after  time.Duration
		want   int
	}{
		{"it runs a job that the ledger has as queued", claims, nil, 0, 1},
		{"it is gone, the webhook is still on its way", nil, nil, time.Second, 1},
		{"the webhook has come", nil, map[string]v1alpha1.JobState{"a": v1alpha1.JobRunning}, 2 * time.Second, 0},
		{"and is not counted again", nil, nil, 3 * time.Second, 0},
		{"another one", claims, nil, 4 * time.Second, 1},
		{"whose webhook never comes", nil, nil, time.Hour, 0},
	}
	for _, step := range steps {
		if got := memory.count(step.claims, step.jobs, now.Add(step.after))[""]; got != step.want {
			t.Errorf("%s: %d, want %d", step.name, got, step.want)
		}
	}
}

// A claim has the labels and annotations that its template asks for.
func TestNewClaimHasTheTemplatesMetadata(t *testing.T) {
	t.Parallel()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Metadata = &v1alpha1.MachineMetadata{
		Labels: map[string]string{"team": "a", v1alpha1.LabelRunnerPool: "another"}, Annotations: map[string]string{"note": "b"},
	}

	pool := &v1alpha1.RunnerPool{}
	pool.Name = "linux"

	claim := newClaim(pool, wanted{from: &source{name: "small", template: template, hash: "h"}}, "linux-1")

	if claim.Labels["team"] != "a" || claim.Annotations["note"] != "b" {
		t.Errorf("labels %v, annotations %v", claim.Labels, claim.Annotations)
	}

	if claim.Labels[v1alpha1.LabelRunnerPool] != "linux" || claim.Labels[v1alpha1.LabelTemplate] != "small" {
		t.Errorf("its own labels can be taken away: %v", claim.Labels)
	}
}
