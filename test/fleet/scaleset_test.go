// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet_test

import (
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// TestScaleSetRunsJobsWithoutWebhooks checks that a scale set's jobs run without webhooks, even if they were
// queued while no operator was running, and that nothing is left of them.
func TestScaleSetRunsJobsWithoutWebhooks(t *testing.T) {
	t.Parallel()

	const set = "big-machines"

	f := newFastFleet(t, fleet.Options{})
	f.GitHub.SetWebhook(control.WebhookTarget{})

	pool := f.NewPool(3)
	pool.Spec.Workload.Webhook = nil
	pool.Spec.Workload.Config.GitHub = &v1alpha1.GitHubActionsConfig{ScaleSet: set}
	createAndStart(f, f.NewTemplate(), pool)
	f.EventuallyReady(f.NewTemplate())

	f.GitHub.Queue(control.JobSpec{Labels: []string{set}, Count: 2, Duration: 50 * time.Millisecond})
	f.EventuallyJobsDone(2)
	f.Stop()
	f.GitHub.Queue(control.JobSpec{Labels: []string{set}, Count: 1, Duration: 50 * time.Millisecond})
	f.Start()
	f.EventuallyJobsDone(3)
	f.EventuallyClean()

	if made := f.CountClones(); made != 3 {
		t.Errorf("%d VMs were created for 3 jobs", made)
	}

	state := f.GitHub.State()
	if got := state.Requests["scaleset POST sessions"]; got != 2 {
		t.Errorf("%d sessions were opened, want 2: one by each operator", got)
	}

	if got := state.Requests["actions/generate-runner-jitconfig-for-repo"]; got != 0 {
		t.Errorf("%d runners were registered outside the scale set", got)
	}
}
