// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea_test

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/forge/forgetest"
	giteasim "github.com/hyperfleet/hyperfleet/sim/gitea"
	"github.com/hyperfleet/hyperfleet/sim/gitea/giteatest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/gitea"
)

const findOwnerLabel = "hf-op-1a2b3c"

// testServer is a simulated server and a provider of one of its scopes.
type testServer struct {
	*giteatest.Server

	platform gitea.Platform
	runner   workload.RunnerSpec
	provider workload.Provider
}

// testBothServers runs a test with both servers.
func testBothServers(t *testing.T, test func(t *testing.T, forgejo bool)) {
	t.Helper()

	for name, forgejo := range map[string]bool{"forgejo": true, "gitea": false} {
		t.Run(name, func(t *testing.T) { test(t, forgejo) })
	}
}

// startServer starts a simulator and opens the repository's scope unless settings select another scope.
func startServer(t *testing.T, opts giteasim.Options, change func(*v1alpha1.GiteaConfig), token string) testServer {
	t.Helper()

	out := testServer{Server: giteatest.New(t, opts), platform: gitea.Gitea()}
	settings := &v1alpha1.GiteaConfig{URL: out.URL, Repository: giteatest.Repository, Labels: []string{"linux", "docker"}}

	if change != nil {
		change(settings)
	}

	load := v1alpha1.Workload{Config: &v1alpha1.WorkloadConfig{Gitea: settings}}
	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{Gitea: &v1alpha1.GiteaBootstrap{}}

	if opts.Forgejo {
		out.platform = gitea.Forgejo()
		load.Config = &v1alpha1.WorkloadConfig{Forgejo: settings}
		template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{Forgejo: &v1alpha1.GiteaBootstrap{}}
	}

	var err error
	if out.runner, err = out.platform.ResolveRunner(template, load); err != nil {
		t.Fatal(err)
	}

	out.provider, err = out.platform.Open(workload.Config{
		Runner: out.runner, Template: template, Secrets: map[string]string{"token": token},
	})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// pollJobs returns the jobs of a poll.
func (s testServer) pollJobs(t *testing.T) []workload.Job {
	t.Helper()

	poller, ok := s.provider.(workload.Poller)
	if !ok {
		t.Fatal("the provider cannot be polled")
	}

	out, err := poller.ListJobs(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// issueCredential creates a runner for a job.
func (s testServer) issueCredential(t *testing.T, name string, job *workload.Job) workload.Credential {
	t.Helper()

	out, err := s.provider.IssueCredential(t.Context(), workload.RunnerRequest{
		Name: name, Labels: append(slices.Clone(s.runner.Labels), findOwnerLabel), Job: job,
	})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// TestRunnerLifecycle covers a runner from the poll that finds its job until the server has removed
// the runner.
func TestRunnerLifecycle(t *testing.T) {
	testBothServers(t, func(t *testing.T, forgejo bool) {
		t.Helper()

		s := startServer(t, giteasim.Options{Forgejo: forgejo}, nil, giteatest.Token)
		if err := s.provider.Validate(t.Context()); err != nil {
			t.Fatal(err)
		}

		queued := s.Queue(control.JobSpec{Labels: []string{"linux"}, Command: "echo hello"})[0]
		found := s.pollJobs(t)

		if len(found) != 1 || found[0].State != v1alpha1.JobQueued || found[0].Repository != giteatest.Repository {
			t.Fatalf("polled %+v", found)
		}

		if fit := s.platform.MatchJob(s.runner, found[0]); !fit.Matched || !fit.InScope {
			t.Errorf("fit %+v", fit)
		}

		credential := s.issueCredential(t, "vm-1", &found[0])
		if credential.JITConfig == "" || credential.RunnerToken == "" || credential.RegistrationURL != s.URL {
			t.Fatal("the credential is incomplete")
		}

		runner, err := s.provider.FindRunner(t.Context(), "vm-1", 0)
		if err != nil || runner.ID != credential.RunnerID || runner.Online || runner.Busy || !slices.Contains(runner.Labels, findOwnerLabel) {
			t.Errorf("found runner %+v, %v", runner, err)
		}

		program := s.StartRunner(t, credential.JITConfig, credential.RunnerToken, credential.JobID, "linux", "docker")
		if code := program.Wait(); code != 0 {
			t.Errorf("the runner ended with %d:\n%s", code, program.Output())
		}

		if got := s.State().Jobs[0]; got.Conclusion != "success" || got.RunnerName != "vm-1" || s.Log(queued.ID) != "hello" {
			t.Errorf("the server has job %+v, log %q", got, s.Log(queued.ID))
		}

		if _, err := s.provider.FindRunner(t.Context(), "vm-1", 0); !workload.Is(err, workload.NotFound) {
			t.Errorf("the runner is there after its job: %v", err)
		}

		if err := s.provider.Deregister(t.Context(), credential.RunnerID); err != nil {
			t.Errorf("removal of a deleted runner: %v", err)
		}
	})
}

// TestCompletedJobIsReportedOnce checks that a job that is no longer listed is returned once, with its
// result.
func TestCompletedJobIsReportedOnce(t *testing.T) {
	testBothServers(t, func(t *testing.T, forgejo bool) {
		t.Helper()

		s := startServer(t, giteasim.Options{Forgejo: forgejo}, nil, giteatest.Token)
		job := s.Queue(control.JobSpec{Labels: []string{"linux"}, Command: "sleep 60"})[0]
		found := s.pollJobs(t)
		credential := s.issueCredential(t, "vm-1", &found[0])
		program := s.StartRunner(t, credential.JITConfig, credential.RunnerToken, credential.JobID, "linux")
		s.WaitUntil("the job runs", func(st control.State) bool { return st.Jobs[0].Status == "in_progress" })

		if running := s.pollJobs(t); len(running) != 1 || running[0].State != v1alpha1.JobRunning {
			t.Fatalf("polled %+v", running)
		}

		if err := s.provider.Deregister(t.Context(), credential.RunnerID); !workload.Is(err, workload.RunnerBusy) {
			t.Errorf("a busy runner was removed: %v", err)
		}

		if err := s.Cancel(job.ID); err != nil {
			t.Fatal(err)
		}

		program.Wait()

		over := s.pollJobs(t)
		if len(over) != 1 || over[0].State != v1alpha1.JobCompleted || over[0].Conclusion != "cancelled" || over[0].ID != found[0].ID {
			t.Errorf("polled %+v", over)
		}

		if again := s.pollJobs(t); len(again) != 0 {
			t.Errorf("returned again: %+v", again)
		}
	})
}

// TestABlockedJobIsNotPolled checks that a blocked job is not returned, because no runner can run
// it.
func TestABlockedJobIsNotPolled(t *testing.T) {
	testBothServers(t, func(t *testing.T, forgejo bool) {
		t.Helper()

		s := startServer(t, giteasim.Options{Forgejo: forgejo}, nil, giteatest.Token)
		job := s.Queue(control.JobSpec{Labels: []string{"linux"}, Environment: "production"})[0]

		if found := s.pollJobs(t); len(found) != 0 {
			t.Errorf("polled %+v", found)
		}

		if err := s.Approve(job.ID); err != nil {
			t.Fatal(err)
		}

		if found := s.pollJobs(t); len(found) != 1 {
			t.Errorf("polled %+v after the approval", found)
		}
	})
}

// TestScopes checks the jobs and the runners of a repository, an organization and the instance.
func TestScopes(t *testing.T) {
	scopes := map[string]func(*v1alpha1.GiteaConfig){
		"repository":   nil,
		"organization": func(c *v1alpha1.GiteaConfig) { c.Repository, c.Organization = "", giteatest.Organization },
		"instance":     func(c *v1alpha1.GiteaConfig) { c.Repository = "" },
	}
	want := map[string]int{"repository": 1, "organization": 2, "instance": 3}

	testBothServers(t, func(t *testing.T, forgejo bool) {
		t.Helper()

		for name, change := range scopes {
			t.Run(name, func(t *testing.T) {
				repositories := []string{giteatest.Repository, "acme/other", "else/where"}
				s := startServer(t, giteasim.Options{Forgejo: forgejo, Repositories: repositories}, change, giteatest.Token)

				for _, repository := range repositories {
					s.Queue(control.JobSpec{Repo: repository, Labels: []string{"linux"}})
				}

				found := s.pollJobs(t)
				if len(found) != want[name] {
					t.Errorf("polled %d jobs: %+v", len(found), found)
				}

				for i := range found {
					if fit := s.platform.MatchJob(s.runner, found[i]); !fit.Matched {
						t.Errorf("job of %s is not accepted: %+v", found[i].Repository, fit)
					}
				}

				s.issueCredential(t, "vm-1", &found[0])

				if _, err := s.provider.FindRunner(t.Context(), "vm-1", 0); err != nil {
					t.Error(err)
				}

				if runners, err := s.provider.ListRunners(t.Context(), "vm-"); err != nil || len(runners) != 1 {
					t.Errorf("runners %+v, %v", runners, err)
				}
			})
		}
	})
}

// TestOfflineRunnerIsReplaced checks that a runner that never came online is replaced by one of the same
// name, and that an online runner is not.
func TestOfflineRunnerIsReplaced(t *testing.T) {
	testBothServers(t, func(t *testing.T, forgejo bool) {
		t.Helper()

		s := startServer(t, giteasim.Options{Forgejo: forgejo}, nil, giteatest.Token)
		s.Queue(control.JobSpec{Labels: []string{"linux"}, Command: "sleep 60"})
		job := s.pollJobs(t)[0]
		first := s.issueCredential(t, "vm-1", &job)

		// The second call lists the runner of the first call, as after a restart.
		again := s
		again.provider = reopenProvider(t, s)

		second := again.issueCredential(t, "vm-1", &job)
		if second.RunnerID == first.RunnerID || len(s.State().Runners) != 1 {
			t.Errorf("runners %+v", s.State().Runners)
		}

		program := s.StartRunner(t, second.JITConfig, second.RunnerToken, second.JobID, "linux")
		s.WaitUntil("the job runs", func(st control.State) bool { return st.Jobs[0].Status == "in_progress" })

		_, err := reopenProvider(t, s).IssueCredential(t.Context(), workload.RunnerRequest{Name: "vm-1", Labels: []string{"linux"}, Job: &job})
		if !workload.Is(err, workload.Conflict) {
			t.Errorf("an online runner was replaced: %v", err)
		}

		program.Stop()
		program.Wait()
	})
}

// reopenProvider creates another provider of the same scope.
func reopenProvider(t *testing.T, s testServer) workload.Provider {
	t.Helper()

	template := &v1alpha1.HypervisorMachineTemplate{}
	template.Spec.Bootstrap.Config = &v1alpha1.BootstrapConfig{Forgejo: &v1alpha1.GiteaBootstrap{}, Gitea: &v1alpha1.GiteaBootstrap{}}

	out, err := s.platform.Open(workload.Config{
		Runner: s.runner, Template: template, Secrets: map[string]string{"token": giteatest.Token},
	})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

// TestReplacedRegistrationToken checks that a replaced registration token is requested
// again.
func TestReplacedRegistrationToken(t *testing.T) {
	s := startServer(t, giteasim.Options{}, nil, giteatest.Token)
	s.issueCredential(t, "vm-1", nil)
	s.issueCredential(t, "vm-2", nil)

	const asks = "POST /repos/{owner}/{repo}/actions/runners/registration-token"
	if got := s.State().Requests[asks]; got != 1 {
		t.Errorf("the registration token was requested %d times", got)
	}

	s.ResetRegistrationTokens()
	s.issueCredential(t, "vm-3", nil)

	if got := s.State().Requests[asks]; got != 2 {
		t.Errorf("the registration token was requested %d times", got)
	}
}

// TestRefusals checks the reasons and messages of rejected settings.
func TestRefusals(t *testing.T) {
	type refusal struct {
		opts   giteasim.Options
		change func(*v1alpha1.GiteaConfig)
		token  string
		reason string
		says   string
	}

	readOnly := []giteasim.Token{{Token: giteatest.Token, Scopes: []string{"write:issue"}}}

	for name, tc := range map[string]refusal{
		"Gitea for Forgejo":  {opts: giteasim.Options{Forgejo: true, Version: "1.27.3"}, reason: "ForgejoConfigInvalid", says: "gitea-actions"},
		"Forgejo for Gitea":  {opts: giteasim.Options{Version: "15.0.0+gitea-1.22.0"}, reason: "GiteaConfigInvalid", says: "forgejo-actions"},
		"an old Forgejo":     {opts: giteasim.Options{Forgejo: true, Version: "14.0.1+gitea-1.22.0"}, reason: "ForgejoVersionTooOld", says: "15"},
		"an old Gitea":       {opts: giteasim.Options{Version: "1.24.2"}, reason: "GiteaVersionTooOld", says: "1.26"},
		"a wrong token":      {token: strings.Repeat("f", 40), reason: "GiteaCredentialsInvalid", says: "access token"},
		"a token's scope":    {opts: giteasim.Options{Tokens: readOnly}, reason: "GiteaPermissionMissing", says: "write:repository"},
		"missing repository": {change: func(c *v1alpha1.GiteaConfig) { c.Repository = "acme/none" }, reason: "GiteaScopeNotFound", says: "repository acme/none"},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.token == "" {
				tc.token = giteatest.Token
			}

			err := startServer(t, tc.opts, tc.change, tc.token).provider.Validate(t.Context())
			known, ok := err.(*workload.Error) //nolint:errorlint // the error must not be wrapped
			if !ok || known.Kind != workload.Rejected || known.Reason != tc.reason || !strings.Contains(known.Message, tc.says) {
				t.Errorf("got %v, want %s: ... %s", err, tc.reason, tc.says)
			}

			if err != nil && strings.Contains(err.Error(), tc.token) {
				t.Error("the token is in the error")
			}
		})
	}
}

// TestARateLimit checks that the caller gets the server's delay.
func TestARateLimit(t *testing.T) {
	testBothServers(t, func(t *testing.T, forgejo bool) {
		t.Helper()

		faults := control.Faults{RateLimit: 1, RetryAfter: 7 * time.Second}
		s := startServer(t, giteasim.Options{Forgejo: forgejo, Faults: faults}, nil, giteatest.Token)

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()

		err := s.provider.Validate(ctx)
		if known, ok := err.(*workload.Error); !ok || known.Kind != workload.RateLimited || known.RetryAfter != 7*time.Second { //nolint:errorlint // the error must not be wrapped
			t.Errorf("got %v", err)
		}
	})
}

// TestWebhooks checks that Gitea's webhooks are verified and parsed, and report each change.
func TestWebhooks(t *testing.T) {
	receiver := forgetest.NewReceiver(t, nil)
	s := startServer(t, giteasim.Options{Webhook: control.WebhookTarget{URL: receiver.URL, Secret: "s3cret"}}, nil, giteatest.Token)
	s.Queue(control.JobSpec{Labels: []string{"linux"}, Name: "unit tests"})
	s.WaitUntil("the webhook is there", func(st control.State) bool { return st.Webhooks.Delivered == 1 })

	hook := receiver.Webhooks()[0]
	parser := s.platform

	if err := parser.Verify(hook.Header, hook.Body, []byte("s3cret")); err != nil {
		t.Error(err)
	}

	if err := parser.Verify(hook.Header, hook.Body, []byte("other")); err == nil {
		t.Error("a wrong secret is accepted")
	}

	if scope, err := parser.ParseScope(hook.Header, hook.Body); err != nil || scope.Repository != giteatest.Repository || scope.Organization != "acme" {
		t.Errorf("scope %+v, %v", scope, err)
	}

	job, speaks, err := parser.ParseJob(hook.Header, hook.Body)
	if err != nil || !speaks || job.State != v1alpha1.JobQueued || job.Name != "unit tests" || job.Platform != v1alpha1.WorkloadGiteaActions {
		t.Errorf("job %+v, %t, %v", job, speaks, err)
	}

	if polled := s.pollJobs(t); len(polled) != 1 || polled[0].ID != job.ID || polled[0].URL != job.URL {
		t.Errorf("polled %+v, and the webhook has %+v", polled, job)
	}

	other := http.Header{gitea.HeaderEvent: {"push"}}
	if _, speaks, err := parser.ParseJob(other, []byte(`{}`)); speaks || err != nil {
		t.Errorf("another event: %t, %v", speaks, err)
	}
}
