// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab_test

import (
	"strconv"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	sim "github.com/hyperfleet/hyperfleet/sim/gitlab"
	"github.com/hyperfleet/hyperfleet/sim/gitlab/gitlabtest"
	"github.com/hyperfleet/hyperfleet/workload"
)

// TestRenamedProject checks that runners and jobs of a project that was renamed are still found under the path in
// the settings, that a poll says what to change, and that a deleted job counts as deleted.
func TestRenamedProject(t *testing.T) {
	t.Parallel()

	server := gitlabtest.New(t, sim.Options{})
	queued := server.Queue(control.JobSpec{Labels: []string{"linux"}})[0]

	if err := server.Rename(gitlabtest.Project, "gitlab-org/ci/renamed"); err != nil {
		t.Fatal(err)
	}

	p := newTestProvider(t, newProjectConfig(server))

	poller, ok := p.(workload.Poller)
	if !ok {
		t.Fatal("the provider is not a Poller")
	}

	jobs, err := poller.ListJobs(t.Context(), nil)
	checkError(t, err, workload.Rejected, workload.ReasonMoved, "gitlab-org/ci/renamed")

	if len(jobs) != 1 || jobs[0].Repository != gitlabtest.Project {
		t.Errorf("jobs = %+v", jobs)
	}

	id := strconv.FormatInt(queued.ID, 10)
	if _, err := p.GetJob(t.Context(), gitlabtest.Project, id); err != nil {
		t.Error(err)
	}

	issued, err := p.IssueCredential(t.Context(), newRequest("one"))
	if err != nil {
		t.Fatal(err)
	}

	if err := p.Deregister(t.Context(), issued.RunnerID); err != nil {
		t.Error(err)
	}

	if err := server.DeleteJob(queued.ID); err != nil {
		t.Fatal(err)
	}

	_, err = p.GetJob(t.Context(), gitlabtest.Project, id)
	checkError(t, err, workload.NotFound, workload.ReasonJobDeleted, "job "+id)
}
