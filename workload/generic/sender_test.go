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

// read verifies and reads a webhook.
func read(t *testing.T, hook generictest.Webhook, secret string) workload.Job {
	t.Helper()

	var hooks generic.Webhooks
	if err := hooks.Verify(hook.Header, hook.Body, []byte(secret)); err != nil {
		t.Fatalf("verify %s: %v", hook.Body, err)
	}

	job, ok, err := hooks.Parse(hook.Header, hook.Body)
	if err != nil || !ok {
		t.Fatalf("parse %s: %t, %v", hook.Body, ok, err)
	}

	return job
}

// TestWebhooksOfASender: the simulated sender signs by code of its own, in both ways and
// with both kinds of secrets, and its jobs are read as they are.
func TestWebhooksOfASender(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		sign   sim.Signature
		secret string
	}{
		"standard, made secret":  {sim.SignStandard, generictest.Secret},
		"standard, plain secret": {sim.SignStandard, "a plain secret"},
		"hub":                    {sim.SignHub, "a plain secret"},
		"hub, made secret":       {sim.SignHub, generictest.Secret},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			r := generictest.NewReceiver(t, nil)
			s := generictest.New(t, sim.Options{
				Sources: []string{"scans"}, Sign: tc.sign, Webhook: control.WebhookTarget{URL: r.URL, Secret: tc.secret},
			})
			jobs := s.Queue(control.JobSpec{Labels: []string{"gpu"}, Name: "scan all", Count: 3})
			s.Eventually("all are delivered", func(st control.State) bool { return st.Webhooks.Delivered == 3 })

			got, want := map[string]workload.Job{}, map[string]workload.Job{}

			for _, hook := range r.Received() {
				job := read(t, hook, tc.secret)
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

// TestCancelledJobOfASender: a sender takes a job back.
func TestCancelledJobOfASender(t *testing.T) {
	t.Parallel()

	r := generictest.NewReceiver(t, nil)
	s := generictest.New(t, sim.Options{
		RetryFirst: time.Millisecond, RetryMost: time.Millisecond,
		Faults:  control.Faults{WebhookLost: 0.5},
		Webhook: control.WebhookTarget{URL: r.URL},
	})

	if err := s.Cancel(s.Queue(control.JobSpec{})[0].ID); err != nil {
		t.Fatal(err)
	}

	s.Eventually("all are delivered", func(st control.State) bool { return st.Webhooks.Delivered == 2 })

	last := read(t, r.Received()[1], generictest.Secret)
	if last.State != v1alpha1.JobCompleted || last.Conclusion != "cancelled" {
		t.Errorf("%+v", last)
	}
}
