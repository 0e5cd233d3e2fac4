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

// maxPollPages bounds each list of a poll: with a filter GitHub gives at most 1,000 runs.
const maxPollPages = 10

// openStatuses are the statuses of runs that can have jobs in the queue. A run's status
// is one word for all of its jobs, and which of them it goes by differs: a run is queued
// while some of its jobs run already, in_progress while others are queued, and waiting,
// pending or requested while one job is held back by an environment or a concurrency
// group. Only a completed run has none.
func openStatuses() []string {
	return []string{"queued", "in_progress", "waiting", "pending", "requested"}
}

// polls is what polls remember, so that an answer that is there already costs nothing.
type polls struct {
	mu sync.Mutex
	// last is the repository where the last poll ended.
	last string
	// seen by the repository's lower-case name.
	seen map[string]*polledRepository
}

type polledRepository struct {
	// lists of runs, and jobs of runs, by their URL.
	lists map[string]*tagged[runList]
	runs  map[int64]*polledRun
}

// tagged is an answer and its tag.
type tagged[T any] struct {
	etag string
	next bool
	said T
}

type polledRun struct {
	run   listedRun
	pages map[string]*tagged[jobList]
	// asked is when its jobs were last asked for.
	asked time.Time
	// over: all its jobs were completed then.
	over bool
	// open are the jobs that were not.
	open map[string]bool
}

type runList struct {
	Runs []listedRun `json:"workflow_runs"`
}

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

// Jobs lists the jobs that are not completed, and those that were not at the last poll and
// are now. Of a repository's scope only that repository is asked; GitHub has no list of an
// organisation's or an enterprise's jobs. When GitHub's limits leave no room for all
// repositories, the next poll goes on where this one ended. Jobs that come with an error
// hold: the error speaks of repositories that could not be read.
func (p *provider) Jobs(ctx context.Context, repositories []string) ([]workload.Job, error) {
	p.polls.mu.Lock()
	defer p.polls.mu.Unlock()

	names := p.pollable(repositories)
	p.polls.keep(names)

	if len(names) == 0 {
		return nil, workload.NothingToAsk(p.urls.scope.String())
	}

	var (
		out    []workload.Job
		errs   []error
		polled int
	)

	for _, name := range p.polls.order(names) {
		jobs, err := p.pollRepository(ctx, name)
		out = append(out, jobs...)

		if workload.Is(err, workload.RateLimited) {
			if polled == 0 && len(jobs) == 0 {
				return out, errors.Join(append(errs, err)...)
			}

			// The next poll begins with what this one did not reach.
			if len(jobs) > 0 {
				p.polls.last = name
			}

			break
		}

		if err != nil {
			errs = append(errs, err)
		}

		if ctx.Err() != nil {
			break
		}

		polled, p.polls.last = polled+1, name
	}

	return out, errors.Join(errs...)
}

// pollable gives the repositories to ask, each once, in order.
func (p *provider) pollable(repositories []string) []string {
	where := p.urls.scope
	if where.repo != "" {
		return []string{strings.ToLower(where.owner + "/" + where.repo)}
	}

	var out []string

	for _, full := range repositories {
		owner, name, ok := strings.Cut(strings.ToLower(full), "/")
		if ok && plain(owner) && plain(name) && (where.owner == "" || strings.EqualFold(where.owner, owner)) {
			out = append(out, owner+"/"+name)
		}
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// keep forgets repositories that nobody asks for any more.
func (s *polls) keep(names []string) {
	if s.seen == nil {
		s.seen = map[string]*polledRepository{}
	}

	maps.DeleteFunc(s.seen, func(name string, _ *polledRepository) bool { return !slices.Contains(names, name) })
}

// order begins after the repository where the last poll ended.
func (s *polls) order(names []string) []string {
	at, found := slices.BinarySearch(names, s.last)
	if found {
		at++
	}

	return append(slices.Clone(names[at:]), names[:at]...)
}

// pollRepository gives the jobs of one repository. Jobs that come with an error hold.
func (p *provider) pollRepository(ctx context.Context, name string) ([]workload.Job, error) {
	seen := p.polls.seen[name]
	if seen == nil {
		seen = &polledRepository{lists: map[string]*tagged[runList]{}, runs: map[int64]*polledRun{}}
		p.polls.seen[name] = seen
	}

	listed, err := p.pollRuns(ctx, name, seen)
	if err != nil {
		return nil, err
	}

	var out []workload.Job

	for _, at := range seen.due(listed) {
		jobs, err := p.pollRun(ctx, name, at)
		out = append(out, jobs...)

		if err != nil {
			return out, err
		}
	}

	maps.DeleteFunc(seen.runs, func(id int64, at *polledRun) bool {
		_, still := listed[id]

		return !still && len(at.open) == 0
	})

	return out, nil
}

// pollRuns lists the repository's runs that are not completed, by id.
func (p *provider) pollRuns(ctx context.Context, name string, seen *polledRepository) (map[int64]listedRun, error) {
	listed, lists := map[int64]listedRun{}, map[string]*tagged[runList]{}

	for _, status := range openStatuses() {
		for page := 1; page <= maxPollPages; page++ {
			query := paged(page)
			query.Set("status", status)
			query.Set("exclude_pull_requests", "true")

			call := request{
				class: spare, what: "polling " + name, path: "repos/" + name + "/actions/runs", query: query,
			}

			key := query.Encode()

			got, err := tag(ctx, p.caller, call, seen.lists[key])
			if err != nil {
				return nil, p.explainPoll(name, err)
			}

			lists[key] = got

			for _, run := range got.said.Runs {
				listed[run.ID] = run
			}

			if !got.next {
				break
			}
		}
	}

	seen.lists = lists

	return listed, nil
}

// due gives the runs whose jobs are to be asked for, those that were not asked for
// longest first: the listed ones, but for those that are known to be over, and those that
// are listed no more and had jobs that were not completed.
func (r *polledRepository) due(listed map[int64]listedRun) []*polledRun {
	for id, run := range listed {
		at := r.runs[id]
		if at == nil {
			at = &polledRun{pages: map[string]*tagged[jobList]{}, open: map[string]bool{}}
			r.runs[id] = at
		}

		at.over = at.over && at.run.UpdatedAt == run.UpdatedAt && at.run.Attempt == run.Attempt
		at.run = run
	}

	var out []*polledRun

	for _, at := range r.runs {
		if !at.over {
			out = append(out, at)
		}
	}

	slices.SortFunc(out, func(a, b *polledRun) int {
		return cmp.Or(a.asked.Compare(b.asked), cmp.Compare(a.run.ID, b.run.ID))
	})

	return out
}

// pollRun gives a run's jobs that are not completed, or were not when last asked for.
func (p *provider) pollRun(ctx context.Context, name string, at *polledRun) ([]workload.Job, error) {
	var all []workload.Job

	pages := map[string]*tagged[jobList]{}

	for page := 1; page <= maxPollPages; page++ {
		query := paged(page)
		query.Set("filter", "latest")

		call := request{
			class: spare, what: "polling " + name, query: query,
			path: "repos/" + name + "/actions/runs/" + strconv.FormatInt(at.run.ID, 10) + "/jobs",
		}

		key := query.Encode()

		got, err := tag(ctx, p.caller, call, at.pages[key])
		if status, ok := readStatus(err); ok && status == http.StatusNotFound {
			at.over, at.open = true, nil // somebody deleted the run

			return nil, nil
		}

		if err != nil {
			return nil, p.explainPoll(name, err)
		}

		pages[key] = got
		all = append(all, at.run.jobs(got.said)...)

		if !got.next {
			break
		}
	}

	at.pages, at.asked = pages, p.clock.Now()

	return at.changed(all), nil
}

// changed keeps of a run's jobs those worth telling, and remembers which are open.
func (r *polledRun) changed(all []workload.Job) []workload.Job {
	var out []workload.Job

	open := map[string]bool{}

	for _, job := range all {
		if job.State != v1alpha1.JobCompleted {
			open[job.ID] = true
		} else if !r.open[job.ID] {
			continue
		}

		out = append(out, job)
	}

	r.open, r.over = open, len(open) == 0

	return out
}

// jobs translates a list. A job that GitHub describes in words unknown here is left out:
// it is no reason to lose the others.
func (r *listedRun) jobs(list jobList) []workload.Job {
	var out []workload.Job

	for _, said := range list.Jobs {
		event := payload{Job: said, Repository: &repository{FullName: r.Repository.FullName}}
		if r.Repository.Owner.Type == "Organization" {
			event.Organization = &organization{Login: r.Repository.Owner.Login}
		}

		if job, err := event.job(); err == nil {
			out = append(out, job)
		}
	}

	return out
}

// tag makes a call unless its answer is there already and still holds. GitHub does not
// count that against the hour's calls
// (https://docs.github.com/rest/using-the-rest-api/best-practices-for-using-the-rest-api).
func tag[T any](ctx context.Context, from caller, call request, have *tagged[T]) (*tagged[T], error) {
	if have != nil {
		call.etag = have.etag
	}

	got := &tagged[T]{}

	resp, err := from.send(ctx, call, &got.said)
	if status, ok := readStatus(err); ok && status == http.StatusNotModified && have != nil {
		return have, nil
	}

	if err != nil {
		return nil, err
	}

	got.etag, got.next = resp.Header.Get("Etag"), resp.NextPage != 0

	return got, nil
}

func (p *provider) explainPoll(name string, err error) error {
	owner, repo, _ := strings.Cut(name, "/")

	return p.explainOf(scope{owner: owner, repo: repo}, "polling jobs", needsJobs, err)
}
