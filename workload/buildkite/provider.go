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
	// maxPausedAge is the maximum age of the queue's paused state when a job is reserved.
	maxPausedAge = 10 * time.Second
	// pausedRetryDelay is the delay after which callers retry while the queue is paused.
	pausedRetryDelay = 30 * time.Second
	// maxRunnersAge is the maximum age of the job states that ListRunners uses.
	maxRunnersAge = 10 * time.Second
	// maxPages bounds the pages of one job list.
	maxPages = 100
)

var errTooManyPages = errors.New("the list has too many pages")

// provider is one Buildkite stack, which serves one queue.
type provider struct {
	client                               *client
	clock                                clock.Clock
	endpoint, organization, queue, stack string
	metadata                             map[string]string

	// reservations and tokens batch the requests of many jobs into one call.
	reservations *batcher[bool]
	tokens       *batcher[jobToken]
	// stateSlot has capacity 1 and is full while a call for job states is in flight. Callers that
	// wait for it use the states that the call returned.
	stateSlot chan struct{}

	mu sync.Mutex
	// isRegistered means that Buildkite knows the stack. isOrganizationConfirmed means that the token
	// belongs to the configured organization.
	isRegistered, isOrganizationConfirmed bool
	// isPaused is the queue's state, read at pausedAt.
	isPaused bool
	pausedAt time.Time
	// jobsByRunner maps a runner's name to its job. A job has one runner: the last one it was
	// issued to.
	jobsByRunner map[string]string
	// states are the last observed states of those jobs.
	states map[string]observedState
}

type observedState struct {
	state      string
	observedAt time.Time
	// isFromAPI is true if Buildkite returned the state, and false if the provider derived it.
	isFromAPI bool
}

var (
	_ workload.Provider = (*provider)(nil)
	_ workload.Poller   = (*provider)(nil)
)

// Validate registers the stack, which proves that the token and the queue are valid. It also
// checks, until the check succeeds once, that the token belongs to the organization that the pool
// names.
func (p *provider) Validate(ctx context.Context) error {
	if err := p.registerStack(ctx); err != nil {
		return err
	}

	p.mu.Lock()
	isConfirmed := p.isOrganizationConfirmed
	p.mu.Unlock()

	if isConfirmed {
		return nil
	}

	// The Stacks API does not return the organization. The cluster's metrics do
	// (https://buildkite.com/docs/apis/agent-api/metrics).
	var metrics struct {
		Organization slugPayload `json:"organization"`
	}

	err := p.client.call(ctx, http.MethodGet, "/metrics", nil, &metrics)

	switch slug := metrics.Organization.Slug; {
	case isNotFound(err), err == nil && slug == "":
		// Accept a server that does not return the organization.
	case err != nil:
		return p.explain("read the organization of the agent token", err)
	case !strings.EqualFold(slug, p.organization):
		return workload.NewRejected(ReasonOrganization, fmt.Sprintf(
			"the agent token belongs to organization %s, but workload.config.buildkite.organization is %s: "+
				"change it, or the token in the Secret", slug, p.organization))
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.isOrganizationConfirmed = true

	return nil
}

// ListJobs returns the queued jobs that nobody has reserved. If it is called less often than every 30
// seconds, Buildkite shows the queue as disconnected. While the queue is paused, none of its jobs may
// start, so ListJobs returns the jobs in state Waiting, together with an error of kind RateLimited.
func (p *provider) ListJobs(ctx context.Context, _ []string) ([]workload.Job, error) {
	var out []workload.Job

	isPaused, cursor := false, ""

	for pages := 0; ; pages++ {
		if pages == maxPages {
			return nil, fmt.Errorf("list jobs of queue %s: %w", p.queue, errTooManyPages)
		}

		page, err := p.fetchPage(ctx, cursor, maxPageSize)
		if err != nil {
			return nil, err
		}

		isPaused = isPaused || page.ClusterQueue.DispatchPaused

		for _, job := range page.Jobs {
			if converted, ok := p.convertScheduledJob(job); ok {
				out = append(out, converted)
			}
		}

		cursor = page.PageInfo.EndCursor
		if !page.PageInfo.HasNextPage || cursor == "" {
			break
		}
	}

	if !isPaused {
		return out, nil
	}

	for i := range out {
		out[i].State = v1alpha1.JobWaiting
	}

	return out, p.newPausedError()
}

func (p *provider) newPausedError() error {
	return &workload.Error{
		Kind: workload.RateLimited, Reason: ReasonQueuePaused, RetryAfter: pausedRetryDelay,
		Message: fmt.Sprintf("queue %s of organization %s is paused at Buildkite: its jobs start after somebody resumes the queue",
			p.queue, p.organization),
	}
}

// GetJob returns the current state of a job. Buildkite does not return the conclusion of a finished
// job here. Webhooks contain the conclusion.
func (p *provider) GetJob(ctx context.Context, repository, id string) (workload.Job, error) {
	if !isJobID(id) {
		return workload.Job{}, newInvalidJobIDError(id)
	}

	states, err := p.fetchJobStates(ctx, []string{id})
	if err != nil {
		return workload.Job{}, err
	}

	state, conclusion, ok := convertState(states[id])
	if !ok {
		if states[id] != "" {
			return workload.Job{}, fmt.Errorf("get job %s: %w: unknown state %q", id, ErrPayload,
				workload.Truncate(states[id], workload.MaxConclusionLength))
		}

		return workload.Job{}, workload.NewJobDeletedError(id, "the agent token's cluster")
	}

	owner, _, _ := strings.Cut(repository, "/")

	return workload.Job{
		Platform: v1alpha1.WorkloadBuildkite, ID: id, Repository: repository,
		Organization: cmp.Or(owner, p.organization), State: state, Conclusion: conclusion,
	}, nil
}

// FindRunner derives the runner from the state of its job: the runner is online and busy while an
// agent has the job, and offline before. The error has kind NotFound if the job is over, if the job
// was issued to another runner since, or if this process did not issue the runner. After a restart,
// call FindRunner with the runner's id, which is the id of its job and is accepted as a name.
//
// If the reservation expired and another stack's agent took the job, that agent is taken for the
// runner, because the Stacks API does not return the owner of an agent.
func (p *provider) FindRunner(ctx context.Context, name string, maxAge time.Duration) (workload.Runner, error) {
	p.mu.Lock()
	id, ok := p.jobsByRunner[name]
	p.mu.Unlock()

	if !ok && isJobID(name) {
		id, ok = strings.ToLower(name), true
	}

	if !ok {
		return workload.Runner{}, p.newRunnerMissingError(name)
	}

	if err := p.refreshState(ctx, id, maxAge); err != nil {
		return workload.Runner{}, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	runner, ok := p.buildRunner(name, id)
	if !ok {
		return workload.Runner{}, p.newRunnerMissingError(name)
	}

	return runner, nil
}

func (p *provider) newRunnerMissingError(name string) error {
	return &workload.Error{
		Kind: workload.NotFound, Reason: workload.ReasonRunnerMissing,
		Message: fmt.Sprintf("queue %s of organization %s has no runner %s with an unfinished job",
			p.queue, p.organization, name),
	}
}

// buildRunner derives a runner from the state of its job. It returns false if the job is over or
// its state is unknown. The caller holds the lock.
func (p *provider) buildRunner(name, id string) (workload.Runner, bool) {
	rawState := p.states[id].state
	if state, _, _ := convertState(rawState); rawState == "" || state == v1alpha1.JobCompleted {
		return workload.Runner{}, false
	}

	return workload.Runner{ID: id, Name: name, Online: hasAgent(rawState), Busy: hasAgent(rawState)}, true
}

// hasAgent reports whether an agent has the job. It returns true for states that this package does
// not know, so that a new state of Buildkite never deletes a machine that runs a job.
func hasAgent(rawState string) bool {
	state, _, ok := convertState(rawState)

	return rawState != "" && (!ok || state == v1alpha1.JobRunning)
}

// refreshState ensures that the state of a job is at most maxAge old. It requests the states of the
// jobs of all runners together, so that many runners need one call.
func (p *provider) refreshState(ctx context.Context, id string, maxAge time.Duration) error {
	oldestAllowed := p.clock.Now().Add(-max(maxAge, 0))

	select {
	case p.stateSlot <- struct{}{}:
		defer func() { <-p.stateSlot }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the states of jobs: %w", ctx.Err())
	}

	requestedAt := p.clock.Now()

	p.mu.Lock()
	observed, ok := p.states[id]
	ids := p.trackedJobIDs()
	p.mu.Unlock()

	if ok && observed.isFromAPI && !observed.observedAt.Before(oldestAllowed) {
		return nil
	}

	if !slices.Contains(ids, id) {
		ids = append(ids, id)
	}

	states, err := p.fetchJobStates(ctx, ids)
	if err != nil {
		return err
	}

	p.recordStates(requestedAt, ids, states)

	return nil
}

// trackedJobIDs returns the ids of the jobs that have runners. The caller holds the lock.
func (p *provider) trackedJobIDs() []string {
	out := make([]string, 0, len(p.jobsByRunner))
	for _, id := range p.jobsByRunner {
		out = append(out, id)
	}

	slices.Sort(out)

	return slices.Compact(out)
}

// recordStates stores job states, and deletes the runners whose jobs are over.
func (p *provider) recordStates(observedAt time.Time, ids []string, states map[string]string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	for _, id := range ids {
		if !p.states[id].observedAt.After(observedAt) {
			p.states[id] = observedState{state: states[id], observedAt: observedAt, isFromAPI: true}
		}
	}

	hasRunner := map[string]bool{} // by job id

	for name, id := range p.jobsByRunner {
		hasNoState := p.states[id].observedAt.IsZero()
		if _, isOpen := p.buildRunner(name, id); isOpen || hasNoState {
			hasRunner[id] = true
		} else {
			delete(p.jobsByRunner, name)
		}
	}

	for id, observed := range p.states {
		if !hasRunner[id] && observedAt.Sub(observed.observedAt) > maxRunnersAge {
			delete(p.states, id)
		}
	}
}

// ListRunners returns the runners that this process issued and whose jobs are not over, sorted by
// name. Buildkite cannot list runners.
func (p *provider) ListRunners(ctx context.Context, prefix string) ([]workload.Runner, error) {
	p.mu.Lock()
	ids := p.trackedJobIDs()
	p.mu.Unlock()

	for _, id := range ids {
		if err := p.refreshState(ctx, id, maxRunnersAge); err != nil {
			return nil, err
		}
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	out := []workload.Runner{}

	for name, id := range p.jobsByRunner {
		if runner, ok := p.buildRunner(name, id); ok && strings.HasPrefix(name, prefix) {
			out = append(out, runner)
		}
	}

	slices.SortFunc(out, func(a, b workload.Runner) int { return cmp.Compare(a.Name, b.Name) })

	return out, nil
}

// Deregister only checks whether the runner's job runs, and returns an error of kind RunnerBusy if
// it does. Buildkite has nothing to remove: it keeps no record of an agent that has stopped, and it
// puts a reserved job that nobody started back into its queue when the reservation expires.
// Deregister does not finish the job, because that would fail it.
func (p *provider) Deregister(ctx context.Context, id string) error {
	if !isJobID(id) {
		return workload.NewRejected(ReasonRequest, fmt.Sprintf("runner id %q must be the id of a Buildkite job",
			workload.Truncate(id, maxIDLength)))
	}

	states, err := p.fetchJobStates(ctx, []string{id})
	if err != nil {
		return err
	}

	p.recordStates(p.clock.Now(), []string{id}, states)

	if hasAgent(states[id]) {
		return &workload.Error{
			Kind: workload.RunnerBusy, Reason: workload.ReasonRunnerBusy,
			Message: fmt.Sprintf("job %s is running: its runner stops when the job is over", id),
		}
	}

	return nil
}
