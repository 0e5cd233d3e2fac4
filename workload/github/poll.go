// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

// maxPollPages bounds the pages of each list of a poll. With a filter, GitHub returns at most 1,000
// runs.
const maxPollPages = 10

// openRunStatuses returns the statuses of runs that can have queued jobs. A run has one status for
// all of its jobs, and which job determines it varies: a run can be queued while some of its jobs
// already run, in_progress while others are queued, and waiting, pending or requested while an
// environment or a concurrency group holds back one job. Only a completed run has no queued jobs.
func openRunStatuses() []string {
	return []string{"queued", "in_progress", "waiting", "pending", "requested"}
}

// pollState is the state between polls. It caches responses with their ETags, so that an unchanged
// response does not count against the rate limit.
type pollState struct {
	mu sync.Mutex
	// lastRepository is the last repository that the previous poll completed.
	lastRepository string
	// repositories are keyed by the repository's name in lower case.
	repositories map[string]*polledRepository
}

type polledRepository struct {
	// lists contains pages of runs by query, and runs the polled runs by id.
	lists map[string]*cachedResponse[runList]
	runs  map[int64]*polledRun
}

// cachedResponse is a response with its ETag.
type cachedResponse[T any] struct {
	etag    string
	hasNext bool
	body    T
}

type polledRun struct {
	run   listedRun
	pages map[string]*cachedResponse[jobList]
	// polledAt is when the run's jobs were last listed.
	polledAt time.Time
	// isOver means that all jobs were completed at that time.
	isOver bool
	// openJobs are the ids of the jobs that were not completed at that time.
	openJobs map[string]bool
}

type runList struct {
	Runs []listedRun `json:"workflow_runs"`
}

func (l runList) isList() bool { return l.Runs != nil }

type listedRun struct {
	ID         int64  `json:"id"`
	Attempt    int    `json:"run_attempt"`
	UpdatedAt  string `json:"updated_at"`
	Repository struct {
		FullName string `json:"full_name"`
		Owner    struct {
			Login string `json:"login"`
			Type  string `json:"type"`
		} `json:"owner"`
	} `json:"repository"`
}

type jobList struct {
	Jobs []*jobPayload `json:"jobs"`
}

func (l jobList) isList() bool { return l.Jobs != nil }

// ListJobs returns the jobs that are not completed, and the jobs that were open at the last poll and
// are completed now. For a repository's scope it lists only that repository. GitHub has no job list for an
// organization or an enterprise. If the rate limit does not allow polling all repositories, the
// next poll continues where this one ended. Jobs that are returned together with an error are
// valid. The error then concerns repositories that could not be polled.
func (p *provider) ListJobs(ctx context.Context, repositories []string) ([]workload.Job, error) {
	p.polls.mu.Lock()
	defer p.polls.mu.Unlock()

	names := p.listPolledRepositories(repositories)
	p.polls.deleteOthers(names)

	if len(names) == 0 {
		return nil, workload.NewRepositoriesMissingError(p.urls.scope.String())
	}

	var (
		out    []workload.Job
		errs   []error
		polled int
	)

	for _, name := range p.polls.rotate(names) {
		jobs, err := p.pollRepository(ctx, name)
		out = append(out, jobs...)

		if workload.Is(err, workload.RateLimited) {
			if polled == 0 && len(jobs) == 0 {
				return out, errors.Join(append(errs, err)...)
			}

			// The rate limit is no error of a poll with a result. The next poll begins after this repository.
			if len(jobs) > 0 {
				p.polls.lastRepository = name
			}

			break
		}

		if err != nil {
			errs = append(errs, err)
		}

		if ctx.Err() != nil {
			break
		}

		polled, p.polls.lastRepository = polled+1, name
	}

	return out, errors.Join(errs...)
}

// listPolledRepositories returns the repositories to poll, sorted and without duplicates.
func (p *provider) listPolledRepositories(repositories []string) []string {
	target := p.urls.scope
	if target.repo != "" {
		return []string{strings.ToLower(target.owner + "/" + target.repo)}
	}

	var out []string

	for _, full := range repositories {
		owner, name, ok := strings.Cut(strings.ToLower(full), "/")
		if ok && isValidName(owner) && isValidName(name) && (target.owner == "" || strings.EqualFold(target.owner, owner)) {
			out = append(out, owner+"/"+name)
		}
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// deleteOthers deletes the state of all repositories except names.
func (s *pollState) deleteOthers(names []string) {
	if s.repositories == nil {
		s.repositories = map[string]*polledRepository{}
	}

	maps.DeleteFunc(s.repositories, func(name string, _ *polledRepository) bool { return !slices.Contains(names, name) })
}

// rotate returns the names, beginning after the last repository of the previous poll.
func (s *pollState) rotate(names []string) []string {
	start, found := slices.BinarySearch(names, s.lastRepository)
	if found {
		start++
	}

	return append(slices.Clone(names[start:]), names[:start]...)
}

// pollRepository returns the jobs of one repository. Jobs that are returned together with an error
// are valid.
func (p *provider) pollRepository(ctx context.Context, name string) ([]workload.Job, error) {
	state := p.polls.repositories[name]
	if state == nil {
		state = &polledRepository{lists: map[string]*cachedResponse[runList]{}, runs: map[int64]*polledRun{}}
		p.polls.repositories[name] = state
	}

	listed, err := p.pollRuns(ctx, name, state)
	if err != nil {
		return nil, err
	}

	var (
		out     []workload.Job
		newName string
	)

	for _, run := range state.selectDue(listed) {
		jobs, err := p.pollRun(ctx, name, run)
		out = append(out, jobs...)

		if err != nil {
			return out, err
		}

		newName = cmp.Or(newName, run.run.movedTo(p.urls.scope, name))
	}

	maps.DeleteFunc(state.runs, func(id int64, run *polledRun) bool {
		_, isListed := listed[id]

		return !isListed && len(run.openJobs) == 0
	})

	if newName != "" {
		return out, workload.NewMovedError("repository "+name, newName, "the owner and the repository in the pool's "+
			"workload.config.github or the template's bootstrap.config.github, and spec.demand.polling.repositories")
	}

	return out, nil
}

// movedTo returns the new name of a repository that was renamed or moved, if the scope does not contain the new name, and ""
// otherwise. Calls with the former name still succeed, because GitHub redirects them. For an enterprise, movedTo returns "",
// because a run does not say to which enterprise its repository belongs.
func (r *listedRun) movedTo(target scope, polled string) string {
	name := r.Repository.FullName
	owner, _, _ := strings.Cut(name, "/")

	if strings.EqualFold(name, polled) || target.enterprise != "" || target.repo == "" && strings.EqualFold(owner, target.owner) {
		return ""
	}

	return name
}

// pollRuns returns the repository's runs that are not completed, by id.
func (p *provider) pollRuns(ctx context.Context, name string, state *polledRepository) (map[int64]listedRun, error) {
	runs, responses := map[int64]listedRun{}, map[string]*cachedResponse[runList]{}

	for _, status := range openRunStatuses() {
		for page := 1; page <= maxPollPages; page++ {
			query := pageQuery(page)
			query.Set("status", status)
			query.Set("exclude_pull_requests", "true")

			call := request{
				class: classPoll, action: "poll " + name, path: "repos/" + name + "/actions/runs", query: query,
			}

			key := query.Encode()

			response, err := sendCached(ctx, p.caller, call, state.lists[key])
			if err != nil {
				return nil, p.explainPoll(name, err)
			}

			responses[key] = response

			for _, run := range response.body.Runs {
				runs[run.ID] = run
			}

			if !response.hasNext {
				break
			}
		}
	}

	state.lists = responses

	return runs, nil
}

// selectDue stores the listed runs, and returns the runs whose jobs must be listed, least recently polled first.
// These are the listed runs, except those that are known to be over, and runs that are no longer listed but
// had open jobs.
func (r *polledRepository) selectDue(listed map[int64]listedRun) []*polledRun {
	for id, run := range listed {
		polled := r.runs[id]
		if polled == nil {
			polled = &polledRun{pages: map[string]*cachedResponse[jobList]{}, openJobs: map[string]bool{}}
			r.runs[id] = polled
		}

		polled.isOver = polled.isOver && polled.run.UpdatedAt == run.UpdatedAt && polled.run.Attempt == run.Attempt
		polled.run = run
	}

	var out []*polledRun

	for _, polled := range r.runs {
		if !polled.isOver {
			out = append(out, polled)
		}
	}

	slices.SortFunc(out, func(a, b *polledRun) int {
		return cmp.Or(a.polledAt.Compare(b.polledAt), cmp.Compare(a.run.ID, b.run.ID))
	})

	return out
}

// pollRun returns the jobs of a run that are not completed or were not completed at the last poll.
func (p *provider) pollRun(ctx context.Context, name string, polled *polledRun) ([]workload.Job, error) {
	var all []workload.Job

	pages := map[string]*cachedResponse[jobList]{}

	for page := 1; page <= maxPollPages; page++ {
		query := pageQuery(page)
		query.Set("filter", "latest")

		call := request{
			class: classPoll, action: "poll " + name, query: query,
			path: "repos/" + name + "/actions/runs/" + strconv.FormatInt(polled.run.ID, 10) + "/jobs",
		}

		key := query.Encode()

		response, err := sendCached(ctx, p.caller, call, polled.pages[key])
		if status, ok := responseStatus(err); ok && status == http.StatusNotFound {
			polled.isOver, polled.openJobs = true, nil // somebody deleted the run

			return nil, nil
		}

		if err != nil {
			return nil, p.explainPoll(name, err)
		}

		pages[key] = response
		all = append(all, polled.run.convertJobs(response.body, p.urls.scope, name)...)

		if !response.hasNext {
			break
		}
	}

	polled.pages, polled.polledAt = pages, p.clock.Now()

	return polled.selectChanged(all), nil
}

// selectChanged returns the jobs of a run that are open, or that were open at the last poll and are
// completed now, and stores which jobs are open. It skips a job that it first sees as completed, because
// the job needs no machine. If a RunnerJob exists for it, its controller asks for the job's state (GetJob).
func (r *polledRun) selectChanged(all []workload.Job) []workload.Job {
	var out []workload.Job

	open := map[string]bool{}

	for _, job := range all {
		isOpen := job.State != v1alpha1.JobCompleted
		if isOpen {
			open[job.ID] = true
		}

		if isOpen || r.openJobs[job.ID] {
			out = append(out, job)
		}
	}

	r.openJobs, r.isOver = open, len(open) == 0

	return out
}

// convertJobs converts a list of jobs. It skips jobs that this package cannot parse, so that the
// others are not lost. If the scope is a repository that was renamed, its jobs keep the former name, because the
// runners of that name still get them.
func (r *listedRun) convertJobs(list jobList, target scope, polled string) []workload.Job {
	var out []workload.Job

	isMoved := target.repo != "" && r.movedTo(target, polled) != ""

	for _, listed := range list.Jobs {
		event := payload{Job: listed, Repository: &repository{FullName: r.Repository.FullName}}
		if isMoved {
			event.Repository.FullName = polled
		} else if r.Repository.Owner.Type == "Organization" {
			event.Organization = &organization{Login: r.Repository.Owner.Login}
		}

		if job, err := event.toJob(); err == nil {
			out = append(out, job)
		}
	}

	return out
}

// sendCached makes a conditional call and returns the cached response if GitHub answers that it has
// not changed. GitHub does not count such calls against the hourly rate limit
// (https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api).
func sendCached[T interface{ isList() bool }](
	ctx context.Context, client caller, call request, cached *cachedResponse[T],
) (*cachedResponse[T], error) {
	if cached != nil {
		call.etag = cached.etag
	}

	response := &cachedResponse[T]{}

	resp, err := client.send(ctx, call, &response.body)
	if status, ok := responseStatus(err); ok && status == http.StatusNotModified && cached != nil {
		return cached, nil
	}

	if err != nil {
		return nil, err
	}

	if !response.body.isList() {
		return nil, workload.ErrNoData
	}

	response.etag, response.hasNext = resp.Header.Get("Etag"), resp.NextPage != 0

	return response, nil
}

func (p *provider) explainPoll(name string, err error) error {
	owner, repo, _ := strings.Cut(name, "/")

	return p.explainScope(scope{owner: owner, repo: repo}, "poll jobs", jobsRequirement, err)
}
