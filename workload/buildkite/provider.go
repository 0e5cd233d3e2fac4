// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// pausedAge is how old the word on a paused queue may be when a job is reserved.
	pausedAge = 10 * time.Second
	// pausedAgain is when it is worth looking at a paused queue again.
	pausedAgain = 30 * time.Second
	// sweepAge is how old the states behind Runners may be.
	sweepAge = 10 * time.Second
	// maxPages bounds a listing of jobs.
	maxPages = 100
)

var errEndless = errors.New("the listing of jobs does not end")

// provider is one stack of Buildkite, which serves one queue.
type provider struct {
	client                               *client
	clock                                clock.Clock
	endpoint, organization, queue, stack string
	metadata                             map[string]string

	// reservations and tokens are got for many jobs in a call.
	reservations *batcher[bool]
	tokens       *batcher[jobToken]
	// asking holds one, who asks for the states of jobs; what is heard serves all who wait.
	asking chan struct{}

	mu sync.Mutex
	// registered tells that Buildkite knows the stack, and confirmed that the token is of
	// the organization.
	registered, confirmed bool
	// paused is the queue's state as of pausedAt.
	paused   bool
	pausedAt time.Time
	// runners are the jobs that runners were made for, by the runner's name. A job has
	// one runner: the last it was issued to.
	runners map[string]string
	// states of those jobs, as last heard.
	states map[string]seenState
}

type seenState struct {
	state string
	at    time.Time
	// heard from Buildkite, and not concluded from what was done.
	heard bool
}

var (
	_ workload.Provider = (*provider)(nil)
	_ workload.Poller   = (*provider)(nil)
)

// Validate registers the stack, which shows that the token and the queue are right, and
// looks once whether the token is of the organization that the pool names.
func (p *provider) Validate(ctx context.Context) error {
	if err := p.register(ctx); err != nil {
		return err
	}

	p.mu.Lock()
	confirmed := p.confirmed
	p.mu.Unlock()

	if confirmed {
		return nil
	}

	// Nothing in the Stacks API names the organization; the metrics of the cluster do
	// (https://buildkite.com/docs/apis/agent-api/metrics).
	var metrics struct {
		Organization slugOf `json:"organization"`
	}

	err := p.client.call(ctx, http.MethodGet, "/metrics", nil, &metrics)

	switch slug := metrics.Organization.Slug; {
	case unknown(err), err == nil && slug == "":
		// A server that does not tell is believed.
	case err != nil:
		return p.explain("asking for the organization of the agent token", err)
	case !strings.EqualFold(slug, p.organization):
		return workload.Reject(ReasonOrganization, fmt.Sprintf("the agent token is of organization %s and the pool is for %s: "+
			"change workload.config.buildkite.organization, or the token in the Secret", slug, p.organization))
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.confirmed = true

	return nil
}

// Jobs gives the jobs that wait in the queue and are reserved by nobody. Buildkite wants
// to be asked at least every 30 seconds, or shows the queue as disconnected. While the
// queue is paused no job of it is to be started: then they are Waiting and come with an
// error of kind RateLimited that says so.
func (p *provider) Jobs(ctx context.Context, _ []string) ([]workload.Job, error) {
	var out []workload.Job

	paused, after := false, ""

	for count := 0; ; count++ {
		if count == maxPages {
			return nil, fmt.Errorf("list jobs of queue %s: %w", p.queue, errEndless)
		}

		page, err := p.page(ctx, after, maxPage)
		if err != nil {
			return nil, err
		}

		paused = paused || page.ClusterQueue.DispatchPaused

		for _, job := range page.Jobs {
			if read, ok := p.polled(job); ok {
				out = append(out, read)
			}
		}

		after = page.PageInfo.EndCursor
		if !page.PageInfo.HasNextPage || after == "" {
			break
		}
	}

	if !paused {
		return out, nil
	}

	for i := range out {
		out[i].State = v1alpha1.JobWaiting
	}

	return out, p.pausedError()
}

func (p *provider) pausedError() error {
	return &workload.Error{
		Kind: workload.RateLimited, Reason: ReasonQueuePaused, After: pausedAgain,
		Message: fmt.Sprintf("queue %s of organization %s is paused at Buildkite: its jobs are not started until it is resumed there",
			p.queue, p.organization),
	}
}

// Job gives Buildkite's present word on a job: its state. How a job that is over ended is
// not said; webhooks tell.
func (p *provider) Job(ctx context.Context, repository, id string) (workload.Job, error) {
	if !isJobID(id) {
		return workload.Job{}, noJobID(id)
	}

	states, err := p.jobStates(ctx, []string{id})
	if err != nil {
		return workload.Job{}, err
	}

	state, conclusion, ok := stateOf(states[id])
	if !ok {
		if states[id] != "" {
			return workload.Job{}, fmt.Errorf("ask for job %s: %w: unknown state %q", id, ErrPayload,
				workload.Cut(states[id], workload.MaxConclusion))
		}

		return workload.Job{}, &workload.Error{
			Kind: workload.NotFound, Reason: workload.ReasonJobMissing,
			Message: "the cluster of the agent token knows no job " + id,
		}
	}

	owner, _, _ := strings.Cut(repository, "/")

	return workload.Job{
		Platform: v1alpha1.WorkloadBuildkite, ID: id, Repository: repository,
		Organization: cmp.Or(owner, p.organization), State: state, Conclusion: conclusion,
	}, nil
}

// Find tells what is known of the runner of that name, which is what Buildkite says of
// the job that it was made for: online and busy while an agent has the job, offline
// before. It is NotFound when the job is over, when the job was given to another runner
// since, and when this process issued no such runner: after a restart, ask by the
// runner's id, which is its job's and is taken for the name as well.
//
// If the reservation lapsed and somebody else's agent took the job, that agent is taken
// for the runner: the Stacks API does not say whose it is.
func (p *provider) Find(ctx context.Context, name string, maxAge time.Duration) (workload.Runner, error) {
	p.mu.Lock()
	id, ok := p.runners[name]
	p.mu.Unlock()

	if !ok && isJobID(name) {
		id, ok = strings.ToLower(name), true
	}

	if !ok {
		return workload.Runner{}, p.noRunner(name)
	}

	if err := p.refresh(ctx, id, maxAge); err != nil {
		return workload.Runner{}, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	runner, ok := p.runner(name, id)
	if !ok {
		return workload.Runner{}, p.noRunner(name)
	}

	return runner, nil
}

func (p *provider) noRunner(name string) error {
	return &workload.Error{
		Kind: workload.NotFound, Reason: workload.ReasonRunnerMissing,
		Message: fmt.Sprintf("queue %s of organization %s has no runner %s whose job is still to be done",
			p.queue, p.organization, name),
	}
}

// runner tells what the state of its job says of a runner; false if the job is over. The
// lock is held.
func (p *provider) runner(name, id string) (workload.Runner, bool) {
	said := p.states[id].state
	if state, _, _ := stateOf(said); said == "" || state == v1alpha1.JobCompleted {
		return workload.Runner{}, false
	}

	return workload.Runner{ID: id, Name: name, Online: taken(said), Busy: taken(said)}, true
}

// taken tells whether an agent has the job. A state that is not known may mean that: no
// machine is to be lost over a new word.
func taken(said string) bool {
	state, _, ok := stateOf(said)

	return said != "" && (!ok || state == v1alpha1.JobRunning)
}

// refresh sees to it that what is known of a job is at most so old. The jobs of all
// runners are asked for together, so that many runners cost one call.
func (p *provider) refresh(ctx context.Context, id string, maxAge time.Duration) error {
	oldest := p.clock.Now().Add(-max(maxAge, 0))

	select {
	case p.asking <- struct{}{}:
		defer func() { <-p.asking }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the states of jobs: %w", ctx.Err())
	}

	now := p.clock.Now()

	p.mu.Lock()
	seen, ok := p.states[id]
	ids := p.tracked()
	p.mu.Unlock()

	if ok && seen.heard && !seen.at.Before(oldest) {
		return nil
	}

	if !slices.Contains(ids, id) {
		ids = append(ids, id)
	}

	states, err := p.jobStates(ctx, ids)
	if err != nil {
		return err
	}

	p.keep(now, ids, states)

	return nil
}

// tracked are the ids of the jobs that runners were made for. The lock is held.
func (p *provider) tracked() []string {
	out := make([]string, 0, len(p.runners))
	for _, id := range p.runners {
		out = append(out, id)
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// keep notes states, and forgets the runners whose jobs are over.
func (p *provider) keep(at time.Time, ids []string, states map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, id := range ids {
		if !p.states[id].at.After(at) {
			p.states[id] = seenState{state: states[id], at: at, heard: true}
		}
	}

	live := map[string]bool{}

	for name, id := range p.runners {
		if _, ok := p.runner(name, id); ok || p.states[id].at.IsZero() {
			live[id] = true
		} else {
			delete(p.runners, name)
		}
	}

	for id, seen := range p.states {
		if !live[id] && at.Sub(seen.at) > sweepAge {
			delete(p.states, id)
		}
	}
}

// Runners gives the runners that this process issued and whose jobs are not over, by
// name: Buildkite lists none.
func (p *provider) Runners(ctx context.Context, prefix string) ([]workload.Runner, error) {
	p.mu.Lock()
	ids := p.tracked()
	p.mu.Unlock()

	for _, id := range ids {
		if err := p.refresh(ctx, id, sweepAge); err != nil {
			return nil, err
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	out := []workload.Runner{}

	for name, id := range p.runners {
		if runner, ok := p.runner(name, id); ok && strings.HasPrefix(name, prefix) {
			out = append(out, runner)
		}
	}

	slices.SortFunc(out, func(a, b workload.Runner) int { return cmp.Compare(a.Name, b.Name) })

	return out, nil
}

// Deregister looks whether the runner's job is being run, which is RunnerBusy: there is
// nothing to remove. An agent that is gone leaves nothing behind, and a job that was
// reserved and not taken goes back to its queue when the reservation lapses. The job is
// not finished here: that would fail it.
func (p *provider) Deregister(ctx context.Context, id string) error {
	if !isJobID(id) {
		return workload.Reject(ReasonRequest, fmt.Sprintf("runner id %q is not one of Buildkite's: ids are those of jobs",
			workload.Cut(id, maxID)))
	}

	states, err := p.jobStates(ctx, []string{id})
	if err != nil {
		return err
	}

	p.keep(p.clock.Now(), []string{id}, states)

	if taken(states[id]) {
		return &workload.Error{
			Kind: workload.RunnerBusy, Reason: workload.ReasonRunnerBusy,
			Message: fmt.Sprintf("job %s is being run: its runner is gone when the job is over", id),
		}
	}

	return nil
}
