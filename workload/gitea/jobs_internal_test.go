// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	testclock "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/kit/retry"
	"github.com/hyperfleet/hyperfleet/test/heap"
)

// newListingProvider returns the provider of a Forgejo server whose job list is *jobs and whose tasks have
// all succeeded.
func newListingProvider(t *testing.T, clk *testclock.FakeClock, jobs *string) *provider {
	t.Helper()

	p, err := newProvider(kindForgejo, Config{
		URL: "https://git.example.com", Token: "t",
		WrapTransport: func(http.RoundTripper) http.RoundTripper {
			return retry.RoundTripperFunc(func(r *http.Request) (*http.Response, error) {
				text := "[" + *jobs + "]"

				switch {
				case strings.HasSuffix(r.URL.Path, "/actions/tasks"):
					text = `{"workflow_runs": [{"id": 7, "status": "success"}]}`
				case strings.Contains(r.URL.Path, "/repositories/"):
					text = `{"full_name": "acme/shop"}`
				}

				return &http.Response{
					StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(text)), Request: r,
					Header: http.Header{"Content-Type": {"application/json"}},
				}, nil
			})
		},
	}, clk)
	if err != nil {
		t.Fatal(err)
	}

	return p
}

func formatRunningJob(handle string, repository int) string {
	return fmt.Sprintf(`{"id": 1, "handle": %q, "repo_id": %d, "runs_on": ["linux"], "task_id": 7, "status": "running"}`, handle, repository)
}

// The result of a completed job is known for taskRetention, whether or not a caller reads it.
func TestTasksOfReadJobsAreDropped(t *testing.T) {
	t.Parallel()

	clk := testclock.NewFakeClock(time.Now())
	jobs := formatRunningJob("a", 7) + "," + formatRunningJob("b", 7)
	p := newListingProvider(t, clk, &jobs)

	list := func() {
		if _, err := p.listForgejoJobs(t.Context()); err != nil {
			t.Fatal(err)
		}
	}

	list()

	jobs = formatRunningJob("b", 7)

	clk.Step(taskRetention)
	list()

	if job, err := p.GetJob(t.Context(), "acme/shop", "a"); err != nil || job.Conclusion != "success" {
		t.Errorf("a job that is over: %+v, %v", job, err)
	}

	if len(p.tasks) != 1 {
		t.Errorf("the task is kept after it was read: %v", p.tasks)
	}

	jobs = formatRunningJob("c", 7)

	clk.Step(taskRetention + time.Second)
	list()

	if _, kept := p.tasks["c"]; !kept || len(p.tasks) != 1 {
		t.Errorf("%v is kept, want the running job", p.tasks)
	}
}

// Ten thousand jobs and repositories that are no longer listed leave little behind, and the stored
// data is bounded however many jobs a server lists within an hour.
func TestStateOfUnlistedJobsIsFreed(t *testing.T) { //nolint:paralleltest // it measures the heap
	clk := testclock.NewFakeClock(time.Now())
	jobs := ""
	p := newListingProvider(t, clk, &jobs)

	heap.CheckNoLeak(t, "jobs and their tasks", func(number int) {
		jobs = formatRunningJob(fmt.Sprintf("job-%d", number), number+1)

		clk.Step(time.Minute)

		if _, err := p.listOpenForgejoJobs(t.Context()); err != nil {
			t.Fatal(err)
		}
	})

	if len(p.names) > maxNames {
		t.Errorf("%d names are kept", len(p.names))
	}

	for number := range 3 * maxTasks / 100 {
		var many []string
		for i := range 100 {
			many = append(many, formatRunningJob(fmt.Sprintf("many-%d-%d", number, i), 1))
		}

		jobs = strings.Join(many, ",")

		clk.Step(time.Millisecond)

		if _, err := p.listOpenForgejoJobs(t.Context()); err != nil {
			t.Fatal(err)
		}

		if len(p.tasks) > maxTasks+100 {
			t.Fatalf("%d tasks are kept", len(p.tasks))
		}
	}
}
