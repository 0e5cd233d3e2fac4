// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/generic"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/generic"
)

// readWebhook verifies and parses a webhook.
func readWebhook(t *testing.T, hook generictest.Webhook, secret string) workload.Job {
	t.Helper()

	var hooks generic.Webhooks
	if err := hooks.Verify(hook.Header, hook.Body, []byte(secret)); err != nil {
		t.Fatalf("verify %s: %v", hook.Body, err)
	}

	job, ok, err := hooks.ParseJob(hook.Header, hook.Body)
	if err != nil || !ok {
		t.Fatalf("parse %s: %t, %v", hook.Body, ok, err)
	}

	return job
}

// TestWebhooksOfASender checks webhooks of the simulated sender, which signs with its own code, in
// both ways and with both kinds of secrets.
func TestWebhooksOfASender(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		sign   sim.Signature
		secret string
	}{
		"standard, generated secret": {sim.SignStandard, generictest.Secret},
		"standard, plain secret":     {sim.SignStandard, "a plain secret"},
		"hub":                        {sim.SignHub, "a plain secret"},
		"hub, generated secret":      {sim.SignHub, generictest.Secret},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			r := generictest.NewReceiver(t, nil)
			s := generictest.New(t, sim.Options{
				Sources: []string{"scans"}, Signature: tc.sign, Webhook: control.WebhookTarget{URL: r.URL, Secret: tc.secret},
			})
			jobs := s.Queue(control.JobSpec{Labels: []string{"gpu"}, Name: "scan all", Count: 3})
			s.WaitUntil("all are delivered", func(st control.State) bool { return st.Webhooks.Delivered == 3 })

			got, want := map[string]workload.Job{}, map[string]workload.Job{}

			for _, hook := range r.Webhooks() {
				job := readWebhook(t, hook, tc.secret)
				got[job.ID] = job
			}

			for _, j := range jobs {
				want[j.Key] = workload.Job{
					Platform: v1alpha1.WorkloadGeneric, ID: j.Key, Name: "scan all", Repository: "scans",
					URL: s.URL + "/jobs/" + j.Key, Labels: []string{"gpu"}, State: v1alpha1.JobQueued,
				}
			}

			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("jobs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestCancelledJobOfASender checks that a sender can cancel a job.
func TestCancelledJobOfASender(t *testing.T) {
	t.Parallel()

	r := generictest.NewReceiver(t, nil)
	s := generictest.New(t, sim.Options{
		RetryDelay: time.Millisecond, MaxRetryDelay: time.Millisecond,
		Faults:  control.Faults{WebhookLost: 0.5},
		Webhook: control.WebhookTarget{URL: r.URL},
	})

	if err := s.Cancel(s.Queue(control.JobSpec{})[0].ID); err != nil {
		t.Fatal(err)
	}

	s.WaitUntil("all are delivered", func(st control.State) bool { return st.Webhooks.Delivered == 2 })

	last := readWebhook(t, r.Webhooks()[1], generictest.Secret)
	if last.State != v1alpha1.JobCompleted || last.Conclusion != "cancelled" {
		t.Errorf("%+v", last)
	}
}
