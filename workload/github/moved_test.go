// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github_test

import (
	"strconv"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/github"
	"github.com/hyperfleet/hyperfleet/sim/github/githubtest"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

// TestRenamedRepository checks that runners and jobs of a repository that was renamed are still found under the
// name in the settings, and that a poll says what to change.
func TestRenamedRepository(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{Repos: []sim.Repo{{FullName: githubtest.Repo, Private: true}, {FullName: "elsewhere/app"}}})
	p, _ := newCountedPoller(t, newRepositoryConfig(server), clocktesting.NewFakeClock(time.Now()))
	queued := server.Queue(control.JobSpec{Labels: []string{"linux"}})[0]

	if err := server.Rename(githubtest.Repo, "octo-org/renamed"); err != nil {
		t.Fatal(err)
	}

	jobs, err := p.ListJobs(t.Context(), nil)
	checkError(t, err, workload.Rejected, workload.ReasonMoved, "octo-org/renamed")

	if len(jobs) != 1 || jobs[0].Repository != githubtest.Repo || jobs[0].State != v1alpha1.JobQueued {
		t.Fatalf("jobs = %+v", jobs)
	}

	provider := newTestProvider(t, newRepositoryConfig(server))
	if job, err := provider.GetJob(t.Context(), githubtest.Repo, strconv.FormatInt(queued.ID, 10)); err != nil || job.Repository != githubtest.Repo {
		t.Errorf("GetJob = %+v, %v", job, err)
	}

	issued, err := provider.IssueCredential(t.Context(), newRunnerRequest("one"))
	if err != nil {
		t.Fatal(err)
	}

	if code := githubtest.StartRunner(t, t.TempDir(), "run", "--jitconfig", issued.JITConfig).Wait(); code != 0 {
		t.Errorf("the runner ends with %d", code)
	}

	if err := provider.Deregister(t.Context(), issued.RunnerID); err != nil {
		t.Error(err)
	}
}

// TestTransferredRepository checks that a poll names a repository that has left the organization, and returns none of
// its jobs, because the organization's runners do not get them.
func TestTransferredRepository(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{Repos: []sim.Repo{{FullName: githubtest.Repo, Private: true}, {FullName: "elsewhere/app"}}})
	p, _ := newCountedPoller(t, newOrganizationConfig(server), clocktesting.NewFakeClock(time.Now()))
	server.Queue(control.JobSpec{Labels: []string{"linux"}})

	if err := server.Rename(githubtest.Repo, "octo-org/renamed"); err != nil {
		t.Fatal(err)
	}

	if jobs := pollJobs(t, p, githubtest.Repo); len(jobs) != 1 || jobs[0].Repository != "octo-org/renamed" {
		t.Errorf("jobs of a repository that was renamed in its organization: %+v", jobs)
	}

	if err := server.Rename("octo-org/renamed", "elsewhere/renamed"); err != nil {
		t.Fatal(err)
	}

	jobs, err := p.ListJobs(t.Context(), []string{githubtest.Repo})
	checkError(t, err, workload.Rejected, workload.ReasonMoved, "elsewhere/renamed")

	for _, job := range jobs {
		if (github.Platform{}).MatchJob(workload.RunnerSpec{Scope: workload.Scope{Organization: githubtest.Org}}, job).InScope {
			t.Errorf("job = %+v", job)
		}
	}
}

// TestDeletedRun checks that a job of a deleted run counts as deleted only if the credentials can read the
// repository's runs.
func TestDeletedRun(t *testing.T) {
	t.Parallel()

	server := githubtest.New(t, sim.Options{PATs: []sim.PAT{
		{Token: githubtest.PAT, Scopes: []string{"repo"}}, {Token: "ghp_blind", Permissions: map[string]string{"actions": "read"}, Repos: []string{"octo-org/other"}},
	}})
	job := server.Queue(control.JobSpec{Labels: []string{"linux"}})[0]

	if err := server.DeleteRun(job.ID); err != nil {
		t.Fatal(err)
	}

	for token, reason := range map[string]string{githubtest.PAT: workload.ReasonJobDeleted, "ghp_blind": workload.ReasonJobMissing} {
		config := newRepositoryConfig(server)
		config.Token = token

		_, err := newTestProvider(t, config).GetJob(t.Context(), githubtest.Repo, strconv.FormatInt(job.ID, 10))
		checkError(t, err, workload.NotFound, reason, "job "+strconv.FormatInt(job.ID, 10))
	}
}
