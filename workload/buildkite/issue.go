// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/workload"
)

var errNotReserved = errors.New("the job still waits, but Buildkite did not reserve it")

// IssueCredential reserves the job and gets a token with which one agent can acquire it. Both
// expire after the request's timeout, at most one hour. If it is called again for the same runner
// and job, it extends the reservation and returns another token that is equally valid.
//
// The error has kind NotFound and reason JobGone if the job is no longer available, kind Conflict
// if the runner already runs the job, and kind RateLimited if the queue is paused.
func (p *provider) IssueCredential(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	if err := validateRequest(req); err != nil {
		return workload.Credential{}, err
	}

	if err := p.checkNotPaused(ctx); err != nil {
		return workload.Credential{}, err
	}

	id, lifetimeSeconds := strings.ToLower(req.Job.ID), clampLifetime(req.Timeout)

	if err := p.reserveJob(ctx, req, id, lifetimeSeconds); err != nil {
		return workload.Credential{}, err
	}

	// The job is reserved now. It is assigned to the runner before the runner's token is issued.
	p.assignJob(req.Name, id)

	return p.acquireToken(ctx, id, lifetimeSeconds)
}

func validateRequest(req workload.RunnerRequest) error {
	switch {
	case req.Name == "" || len(req.Name) > workload.MaxRunnerNameLength:
		return workload.NewRejected(ReasonRequest,
			fmt.Sprintf("runner name %q must have 1 to %d characters", req.Name, workload.MaxRunnerNameLength))
	case req.Job == nil:
		return workload.NewRejected(ReasonRequest, fmt.Sprintf("runner %s has no job: each Buildkite agent needs one job", req.Name))
	case !isJobID(req.Job.ID):
		return newInvalidJobIDError(req.Job.ID)
	default:
		return nil
	}
}

// clampLifetime returns a timeout in whole seconds, at least one second and at most one hour.
func clampLifetime(timeout time.Duration) int64 {
	if timeout <= 0 {
		timeout = defaultExpiry
	}

	return int64(max(min(timeout, maxExpiry), time.Second) / time.Second)
}

// checkNotPaused returns an error if the queue is paused. It asks Buildkite unless the queue's
// state was read within maxPausedAge.
func (p *provider) checkNotPaused(ctx context.Context) error {
	p.mu.Lock()
	isPaused, isFresh := p.isPaused, p.clock.Since(p.pausedAt) < maxPausedAge
	p.mu.Unlock()

	if !isFresh {
		page, err := p.fetchPage(ctx, "", 1)
		if err != nil {
			return err
		}

		isPaused = page.ClusterQueue.DispatchPaused
	}

	if isPaused {
		return p.newPausedError()
	}

	return nil
}

// reserveJob reserves the job in one call together with other pending jobs.
func (p *provider) reserveJob(ctx context.Context, req workload.RunnerRequest, id string, lifetimeSeconds int64) error {
	_, reserved, err := p.reservations.get(ctx, id, lifetimeSeconds)

	switch {
	case err != nil:
		return err
	case reserved:
		return nil
	default:
		return p.explainUnreserved(ctx, req, id)
	}
}

// reserveBatch returns the jobs that Buildkite reserved.
func (p *provider) reserveBatch(ctx context.Context, ids []string, lifetimeSeconds int64) (map[string]bool, error) {
	var response reserveResponse

	body := reserveBody{JobUUIDs: ids, Seconds: lifetimeSeconds}

	err := p.callStackAPI(ctx, http.MethodPut, "/scheduled-jobs/batch-reserve", body, &response)
	if err != nil {
		return nil, p.explainOnce("reserve jobs", err)
	}

	if response.Reserved == nil && response.NotReserved == nil {
		return nil, p.explain("reserve jobs", workload.ErrNoData)
	}

	out := make(map[string]bool, len(response.Reserved))
	for _, id := range response.Reserved {
		out[strings.ToLower(id)] = true
	}

	return out, nil
}

// explainUnreserved returns the reason why Buildkite did not reserve a job.
func (p *provider) explainUnreserved(ctx context.Context, req workload.RunnerRequest, id string) error {
	states, err := p.fetchJobStates(ctx, []string{id})
	if err != nil {
		return err
	}

	p.mu.Lock()
	isOwnJob := p.jobsByRunner[req.Name] == id || req.Job.RunnerName == req.Name
	p.mu.Unlock()

	rawState := states[id]
	state, _, _ := convertState(rawState)

	switch {
	case state == v1alpha1.JobRunning && isOwnJob:
		return &workload.Error{
			Kind: workload.Conflict, Reason: workload.ReasonRunnerExists,
			Message: fmt.Sprintf("runner %s already runs job %s", req.Name, id),
		}
	case rawState == "scheduled":
		return fmt.Errorf("reserve job %s of queue %s: %w", id, p.queue, errNotReserved)
	default:
		return newJobGoneError(id, workload.Truncate(rawState, workload.MaxConclusionLength))
	}
}

// newJobGoneError returns the error of a job that is not available in the given state. The state
// "reserved" means that another stack has reserved the job.
func newJobGoneError(id, state string) error {
	switch state {
	case "":
		state = "unknown in the cluster of the agent token"
	case stateReserved:
		state = "reserved by another stack"
	}

	return &workload.Error{
		Kind: workload.NotFound, Reason: ReasonJobGone,
		Message: fmt.Sprintf("job %s is no longer available: its state is %s", id, state),
	}
}

// assignJob records the runner of a job. If another runner had the job before, it has not started the job,
// because Buildkite allows a new reservation only then.
func (p *provider) assignJob(runnerName, jobID string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	maps.DeleteFunc(p.jobsByRunner, func(_, assigned string) bool { return assigned == jobID })
	p.jobsByRunner[runnerName] = jobID
	p.states[jobID] = observedState{state: stateReserved, observedAt: p.clock.Now()}
}

// acquireToken gets the job's token. It never returns the agent token instead.
func (p *provider) acquireToken(ctx context.Context, id string, lifetimeSeconds int64) (workload.Credential, error) {
	token, issued, err := p.tokens.get(ctx, id, lifetimeSeconds)

	switch {
	case err != nil:
		return workload.Credential{}, err
	case !issued || token.Token == "":
		return workload.Credential{}, newJobGoneError(id, "no longer reserved, because Buildkite issued no token for it")
	}

	return workload.Credential{
		RunnerToken: token.Token, RegistrationURL: p.endpoint, ExpiresAt: token.ExpiresAt.Time, RunnerID: id, JobID: id,
	}, nil
}

// acquireTokenBatch returns the tokens that Buildkite issued, by job id.
func (p *provider) acquireTokenBatch(ctx context.Context, ids []string, lifetimeSeconds int64) (map[string]jobToken, error) {
	var response tokensResponse

	body := tokensBody{JobUUIDs: ids, Seconds: lifetimeSeconds}

	err := p.callStackAPI(ctx, http.MethodPost, "/job-acquisition-tokens", body, &response)
	if isNotFound(err) {
		return nil, workload.NewRejected(ReasonToken, fmt.Sprintf("%s issues no job acquisition tokens, "+
			"and without them each agent would need the cluster's agent token: check bootstrap.config.buildkite.endpoint", p.endpoint))
	}

	if err != nil {
		return nil, p.explainOnce("issue job acquisition tokens", err)
	}

	if response.Tokens == nil && response.NotIssued == nil {
		return nil, p.explain("issue job acquisition tokens", workload.ErrNoData)
	}

	out := make(map[string]jobToken, len(response.Tokens))
	for _, token := range response.Tokens {
		out[strings.ToLower(token.JobUUID)] = token
	}

	return out, nil
}
