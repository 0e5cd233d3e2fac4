// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite_test

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	sim "github.com/hyperfleet/hyperfleet/sim/buildkite"
	"github.com/hyperfleet/hyperfleet/sim/buildkite/buildkitetest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/buildkite"
)

const secret = "a-webhook-secret"

func newConfig(server *buildkitetest.Server) buildkite.Config {
	return buildkite.Config{
		Organization: buildkitetest.Organization, Queue: buildkitetest.Queue, Stack: "hyperfleet-test",
		Endpoint: server.Endpoint, Token: buildkitetest.Token,
	}
}

func openProvider(t *testing.T, config buildkite.Config) workload.Provider {
	t.Helper()

	provider, err := buildkite.New(config)
	if err != nil {
		t.Fatal(err)
	}

	return provider
}

// pollJobs lists the jobs.
func pollJobs(t *testing.T, provider workload.Provider) []workload.Job {
	t.Helper()

	poller, ok := provider.(workload.Poller)
	if !ok {
		t.Fatal("the provider does not poll")
	}

	jobs, err := poller.ListJobs(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}

	return jobs
}

func newRequest(name string, job workload.Job) workload.RunnerRequest {
	return workload.RunnerRequest{Name: name, Job: &job, Timeout: 5 * time.Minute}
}

// One job from the queue to its end: the job is polled, reserved and run by an agent that only has
// the job's token, and the platform reports each step.
func TestJobLifecycle(t *testing.T) {
	t.Parallel()

	hooks := buildkitetest.NewReceiver(t)
	server := buildkitetest.New(t, sim.Options{Webhook: control.WebhookTarget{URL: hooks.URL, Secret: secret}})
	provider := openProvider(t, newConfig(server))

	if err := provider.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}

	queued := server.Queue(control.JobSpec{
		Name: "build it", Labels: []string{"queue=default", "os=linux"}, Command: `echo "on $BUILDKITE_AGENT_NAME"; sleep 0.2`,
	})[0]

	jobs := pollJobs(t, provider)
	if len(jobs) != 1 || jobs[0].ID != queued.Key || jobs[0].State != v1alpha1.JobQueued {
		t.Fatalf("polled %+v, want the queued job %s", jobs, queued.Key)
	}

	credential, err := provider.IssueCredential(t.Context(), newRequest("vm-1", jobs[0]))
	if err != nil {
		t.Fatal(err)
	}

	if !strings.HasPrefix(credential.RunnerToken, "bkjat_") || credential.RegistrationURL != server.Endpoint ||
		credential.JobID != queued.Key || credential.RunnerID != queued.Key || credential.ExpiresAt.IsZero() {
		t.Fatalf("the credential is not that of the job: id %s, job %s, url %s, expires %s",
			credential.RunnerID, credential.JobID, credential.RegistrationURL, credential.ExpiresAt)
	}

	if rest := pollJobs(t, provider); len(rest) != 0 {
		t.Errorf("a reserved job is still listed: %+v", rest)
	}

	before, err := provider.FindRunner(t.Context(), "vm-1", 0)
	if diff := cmp.Diff(workload.Runner{ID: queued.Key, Name: "vm-1"}, before); err != nil || diff != "" {
		t.Errorf("Find() before the agent connected: %v, %s", err, diff)
	}

	agent := server.StartAgent(t, queued.Key, credential.RunnerToken, map[string]string{
		"BUILDKITE_AGENT_NAME": "vm-1", "BUILDKITE_AGENT_TAGS": "queue=default,os=linux",
	})
	server.WaitUntil("the job runs", func(s control.State) bool { return s.Jobs[0].Status == "in_progress" && s.Runners[0].Busy })

	during, err := provider.FindRunner(t.Context(), "vm-1", 0)
	if diff := cmp.Diff(workload.Runner{ID: queued.Key, Name: "vm-1", Online: true, Busy: true}, during); err != nil || diff != "" {
		t.Errorf("Find() while it runs: %v, %s", err, diff)
	}

	if err := provider.Deregister(t.Context(), during.ID); !workload.Is(err, workload.RunnerBusy) {
		t.Errorf("Deregister() while it runs = %v, want kind RunnerBusy", err)
	}

	if code := agent.Wait(); code != 0 {
		t.Fatalf("the agent ended with %d: %s", code, agent.Output())
	}

	state := server.WaitUntil("webhooks are delivered", func(s control.State) bool {
		return s.Webhooks.Delivered == 3 && len(s.Runners) == 0
	})
	if got := state.Jobs[0]; got.Conclusion != "success" || got.RunnerName != "vm-1" {
		t.Errorf("the job ended as %+v", got)
	}

	if _, log := server.JobLog(queued.Key); log != "on vm-1\n" {
		t.Errorf("the job's log is %q", log)
	}

	if _, err := provider.FindRunner(t.Context(), "vm-1", 0); !workload.Is(err, workload.NotFound) {
		t.Errorf("Find() afterwards = %v, want kind NotFound", err)
	}

	if err := provider.Deregister(t.Context(), credential.RunnerID); err != nil {
		t.Errorf("Deregister() afterwards = %v", err)
	}

	checkHooks(t, hooks.Webhooks(), jobs[0])
}

// checkHooks checks the webhooks of the job's life.
func checkHooks(t *testing.T, hooks []buildkitetest.Webhook, polled workload.Job) {
	t.Helper()

	states, parser := []v1alpha1.JobState{}, buildkite.Platform{}

	for _, hook := range hooks {
		if err := parser.Verify(hook.Header, hook.Body, []byte(secret)); err != nil {
			t.Errorf("Verify(): %v", err)
		}

		scope, err := parser.ParseScope(hook.Header, hook.Body)
		if err != nil || scope.Organization != polled.Organization || scope.Repository != polled.Repository {
			t.Errorf("Scope() = %+v, %v", scope, err)
		}

		job, ok, err := parser.ParseJob(hook.Header, hook.Body)
		if err != nil || !ok {
			t.Fatalf("Parse() = %v, %v", ok, err)
		}

		// The URL determines the name of the RunnerJob.
		if job.ID != polled.ID || job.URL != polled.URL || job.Queue != polled.Queue {
			t.Errorf("webhook and poll return different jobs: %+v and %+v", job, polled)
		}

		if job.State == v1alpha1.JobCompleted && (job.Conclusion != "passed" || job.RunnerName != "vm-1" || job.CompletedAt == nil) {
			t.Errorf("last webhook: %+v", job)
		}

		states = append(states, job.State)
	}

	want := []v1alpha1.JobState{v1alpha1.JobQueued, v1alpha1.JobRunning, v1alpha1.JobCompleted}
	if diff := cmp.Diff(want, states); diff != "" {
		t.Errorf("states (-want +got):\n%s", diff)
	}
}

// Outages, rate limits and delayed tokens cause delays and lose no job.
func TestJobsSurviveErrors(t *testing.T) {
	t.Parallel()

	// Only the faults cause rate limits. The number of calls per second depends on the machine that
	// runs the test.
	server := buildkitetest.New(t, sim.Options{Seed: 7, NoLimits: true, Faults: control.Faults{
		ServerError: 0.15, RateLimit: 0.1, RetryAfter: time.Second, JITDelay: 20 * time.Millisecond,
	}})
	provider := openProvider(t, newConfig(server))
	jobs := server.Queue(control.JobSpec{Count: 10, Labels: []string{"queue=default"}})

	var group sync.WaitGroup

	for i, job := range jobs {
		group.Go(func() {
			name := fmt.Sprintf("vm-%d", i)

			for end := time.Now().Add(time.Minute); time.Now().Before(end); {
				credential, err := provider.IssueCredential(t.Context(), newRequest(name, workload.Job{ID: job.Key}))
				if err == nil {
					agent := server.StartAgent(t, job.Key, credential.RunnerToken, map[string]string{"BUILDKITE_AGENT_NAME": name})
					if code := agent.Wait(); code != 0 {
						t.Errorf("agent %s ended with %d: %s", name, code, agent.Output())
					}

					return
				}

				switch workload.KindOf(err) {
				case workload.RateLimited, "":
					time.Sleep(50 * time.Millisecond)
				default:
					t.Errorf("Issue() = %v, want it to be worth trying again", err)

					return
				}
			}

			t.Errorf("job %s did not run", job.Key)
		})
	}

	group.Wait()

	for _, job := range server.State().Jobs {
		if job.Conclusion != "success" {
			t.Errorf("job %+v", job)
		}
	}
}
