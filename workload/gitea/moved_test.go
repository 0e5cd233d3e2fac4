// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	giteasim "github.com/hyperfleet/hyperfleet/sim/gitea"
	"github.com/hyperfleet/hyperfleet/sim/gitea/giteatest"
	"github.com/hyperfleet/hyperfleet/workload"
)

// getReason returns the reason of an error, and "" if it has none.
func getReason(err error) string {
	known, ok := errors.AsType[*workload.Error](err)
	if !ok {
		return ""
	}

	return known.Reason
}

// TestRenamedRepository checks that runners and jobs of a repository that was renamed are still found under the
// name in the settings, that a poll of Gitea says what to change, and that a deleted job counts as deleted.
func TestRenamedRepository(t *testing.T) {
	testBothServers(t, func(t *testing.T, forgejo bool) {
		t.Helper()

		s := startServer(t, giteasim.Options{Forgejo: forgejo}, nil, giteatest.Token)
		queued := s.Queue(control.JobSpec{Labels: []string{"linux"}})[0]
		owner, _, _ := strings.Cut(giteatest.Repository, "/")

		if err := s.Rename(giteatest.Repository, owner+"/renamed"); err != nil {
			t.Fatal(err)
		}

		poller, ok := s.provider.(workload.Poller)
		if !ok {
			t.Fatal("the provider cannot be polled")
		}

		jobs, err := poller.ListJobs(t.Context(), nil)
		if len(jobs) != 1 || jobs[0].Repository != giteatest.Repository {
			t.Fatalf("jobs = %+v, %v", jobs, err)
		}

		if !forgejo && (getReason(err) != workload.ReasonMoved || !strings.Contains(err.Error(), owner+"/renamed")) {
			t.Errorf("the poll does not say that the repository has moved: %v", err)
		}

		if job, err := s.provider.GetJob(t.Context(), giteatest.Repository, jobs[0].ID); err != nil || job.State != v1alpha1.JobQueued {
			t.Errorf("job = %+v, %v", job, err)
		}

		issued := s.issueCredential(t, "one", &jobs[0])
		if err := s.provider.Deregister(t.Context(), issued.RunnerID); err != nil {
			t.Error(err)
		}

		if err := s.DeleteJob(queued.ID); err != nil {
			t.Fatal(err)
		}

		job, err := s.provider.GetJob(t.Context(), giteatest.Repository, jobs[0].ID)
		if isOver := getReason(err) == workload.ReasonJobDeleted || forgejo && job.State == v1alpha1.JobCompleted; !isOver {
			t.Errorf("a deleted job: %+v, %v", job, err)
		}
	})
}

// TestJobsThatAreHeldBack checks that jobs that wait for others need no machine, whatever the server calls them.
func TestJobsThatAreHeldBack(t *testing.T) {
	t.Parallel()

	s := startServer(t, giteasim.Options{}, nil, giteatest.Token)

	for _, status := range []string{"waiting", "blocked", "pending", "requested"} {
		body := []byte(`{"action":"x","workflow_job":{"id":7,"labels":["linux"],"status":"` + status +
			`"},"repository":{"full_name":"` + giteatest.Repository + `","html_url":"` + s.URL + "/" + giteatest.Repository + `"}}`)

		job, namesJob, err := s.platform.ParseJob(map[string][]string{"X-Gitea-Event": {"workflow_job"}}, body)
		if err != nil || !namesJob || job.State != v1alpha1.JobWaiting {
			t.Errorf("%s: job = %+v, %v", status, job, err)
		}
	}

	for version, keepsID := range map[string]bool{"1.26.4": true, "1.27.3": false} {
		again := startServer(t, giteasim.Options{Version: version}, nil, giteatest.Token)
		first := again.Queue(control.JobSpec{Labels: []string{"linux"}})[0]

		if err := errors.Join(again.Cancel(first.ID), again.Rerun(first.ID)); err != nil {
			t.Fatal(err)
		}

		if jobs := again.pollJobs(t); len(jobs) != 1 || (jobs[0].ID == strconv.FormatInt(first.ID, 10)) != keepsID {
			t.Errorf("jobs of Gitea %s: %+v", version, jobs)
		}
	}
}
