// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kill

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/generic"
	"github.com/hyperfleet/hyperfleet/sim/generic/generictest"
	"github.com/hyperfleet/hyperfleet/sim/generic/simjob"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
)

// boundLabel is the label of the pool for jobs whose machines are bound to them.
const boundLabel = "linux"

// startSender starts the sender of jobs whose machines are bound to them.
func startSender(f *fleet.Fleet) *generictest.Server {
	f.T.Helper()

	return generictest.New(f.T, generic.Options{
		Webhook:    control.WebhookTarget{URL: f.Front.URL + "/webhooks/generic", Secret: fleet.HookValue},
		RetryDelay: reportInterval, MaxRetryDelay: reportInterval,
	})
}

// newBoundWorkload returns the workload of the pool for the sender's jobs.
func newBoundWorkload(webhook *v1alpha1.Webhook) v1alpha1.Workload {
	return v1alpha1.Workload{
		Type: v1alpha1.WorkloadGeneric, Webhook: webhook,
		Config: &v1alpha1.WorkloadConfig{Generic: &v1alpha1.GenericConfig{
			Source: generictest.Source, Labels: []string{boundLabel}, Command: []string{"job"},
		}},
	}
}

// newBoundDriver returns a function that queues jobs at the sender, and waits until each has succeeded on its only machine.
func newBoundDriver(jobs int) func(w *Fixture) {
	return func(w *Fixture) {
		w.sender.Queue(control.JobSpec{Labels: []string{boundLabel}, Count: jobs})
		w.sender.WaitUntil("the success of all jobs", func(s control.State) bool {
			done := 0

			for _, job := range s.Jobs {
				if job.Conclusion == "success" {
					done++
				}
			}

			return done == jobs
		})
	}
}

// reportInterval is the time after which a guest repeats a report that was not accepted.
const reportInterval = 100 * time.Millisecond

// newBoundGuest returns a guest that runs the job that its machine is bound to, and repeats its reports until the operator
// accepts them, as the bootstrap service does.
func newBoundGuest(testing.TB, *Fixture) func(pve.GuestVM) {
	return func(vm pve.GuestVM) {
		config, err := fleet.ReadGuestConfig(vm.Drive)
		if err != nil {
			vm.Log("read configuration: %v", err)

			return
		}

		deliver(vm.Context, config, guest.Report{Phase: guest.PhaseRunning})

		program := simjob.Program{
			Stdout: io.Discard, Stderr: io.Discard, Getenv: func(name string) string { return config.Env[name] },
		}

		result := "success"
		if program.Main(vm.Context) != simjob.ExitOK {
			result = "failure"
		}

		deliver(vm.Context, config, guest.Report{Phase: guest.PhaseFinished, Reason: guest.ReasonJobDone, Result: result})
	}
}

// deliver sends a report until the operator accepts it, the claim of the machine is deleted, or the machine is stopped.
func deliver(ctx context.Context, config guest.Config, report guest.Report) {
	report.Time = time.Now()

	body, err := json.Marshal(report)
	if err != nil {
		return
	}

	for ctx.Err() == nil {
		request, err := http.NewRequestWithContext(ctx, http.MethodPost, config.Report.URL, bytes.NewReader(body))
		if err != nil {
			return
		}

		request.Header.Set("Authorization", "Bearer "+config.Report.Token)

		if response, err := http.DefaultClient.Do(request); err == nil {
			_ = response.Body.Close()

			if response.StatusCode < http.StatusMultipleChoices || response.StatusCode == http.StatusGone {
				return
			}
		}

		select {
		case <-time.After(reportInterval):
		case <-ctx.Done():
		}
	}
}
