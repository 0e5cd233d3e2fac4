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

var errReserveAgain = errors.New("the job was not reserved though it waits")

// Issue reserves the job and gets the token with which one agent can acquire it. Both end
// after the request's timeout, an hour at most. Asked again for the same runner and job,
// the reservation is extended and another token comes, which is as good as the first.
// Kind NotFound with reason JobGone says that the job is no longer available, and
// Conflict that the runner has it already. A paused queue is RateLimited.
func (p *provider) Issue(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	if err := checkRequest(req); err != nil {
		return workload.Credential{}, err
	}

	if err := p.resumed(ctx); err != nil {
		return workload.Credential{}, err
	}

	id, expiry := strings.ToLower(req.Job.ID), expiryOf(req.Timeout)

	if err := p.reserve(ctx, req, id, expiry); err != nil {
		return workload.Credential{}, err
	}

	// From here on the job is ours: it is known by the runner before its token is.
	p.assign(req.Name, id)

	return p.acquisition(ctx, id, expiry)
}

func checkRequest(req workload.RunnerRequest) error {
	switch {
	case req.Name == "" || len(req.Name) > workload.MaxRunnerName:
		return workload.Reject(ReasonRequest,
			fmt.Sprintf("runner name %q is not of 1 to %d characters", req.Name, workload.MaxRunnerName))
	case req.Job == nil:
		return workload.Reject(ReasonRequest, fmt.Sprintf("runner %s is for no job: an agent of Buildkite is made for one", req.Name))
	case !isJobID(req.Job.ID):
		return noJobID(req.Job.ID)
	default:
		return nil
	}
}

// expiryOf gives whole seconds, between one and an hour.
func expiryOf(timeout time.Duration) int64 {
	if timeout <= 0 {
		timeout = defaultExpiry
	}

	return int64(max(min(timeout, maxExpiry), time.Second) / time.Second)
}

// resumed looks whether the queue is paused, unless that was heard a moment ago.
func (p *provider) resumed(ctx context.Context) error {
	p.mu.Lock()
	paused, fresh := p.paused, p.clock.Since(p.pausedAt) < pausedAge
	p.mu.Unlock()

	if !fresh {
		page, err := p.page(ctx, "", 1)
		if err != nil {
			return err
		}

		paused = page.ClusterQueue.DispatchPaused
	}

	if paused {
		return p.pausedError()
	}

	return nil
}

// reserve reserves the job, together with others that are asked for at the moment.
func (p *provider) reserve(ctx context.Context, req workload.RunnerRequest, id string, expiry int64) error {
	_, reserved, err := p.reservations.get(ctx, id, expiry)

	switch {
	case err != nil:
		return err
	case reserved:
		return nil
	default:
		return p.unreserved(ctx, req, id)
	}
}

// reserveAll gives the jobs that could be reserved.
func (p *provider) reserveAll(ctx context.Context, ids []string, expiry int64) (map[string]bool, error) {
	var got reserveAnswer

	err := p.stackCall(ctx, http.MethodPut, "/scheduled-jobs/batch-reserve", reserveBody{JobUUIDs: ids, Seconds: expiry}, &got)
	if err != nil {
		return nil, p.named("reserving jobs", err)
	}

	out := make(map[string]bool, len(got.Reserved))
	for _, id := range got.Reserved {
		out[strings.ToLower(id)] = true
	}

	return out, nil
}

// unreserved says why a job could not be reserved.
func (p *provider) unreserved(ctx context.Context, req workload.RunnerRequest, id string) error {
	states, err := p.jobStates(ctx, []string{id})
	if err != nil {
		return err
	}

	p.mu.Lock()
	mine := p.runners[req.Name] == id || req.Job.RunnerName == req.Name
	p.mu.Unlock()

	said := states[id]
	state, _, _ := stateOf(said)

	switch {
	case state == v1alpha1.JobRunning && mine:
		return &workload.Error{
			Kind: workload.Conflict, Reason: workload.ReasonRunnerExists,
			Message: fmt.Sprintf("runner %s runs job %s already", req.Name, id),
		}
	case said == "scheduled":
		return fmt.Errorf("reserve job %s of queue %s: %w", id, p.queue, errReserveAgain)
	default:
		return jobGone(id, workload.Cut(said, workload.MaxConclusion))
	}
}

// jobGone says that a job cannot be had. Reserved means: by another stack.
func jobGone(id, state string) error {
	switch state {
	case "":
		state = "unknown to the cluster of the agent token"
	case stateReserved:
		state = "reserved by another stack"
	}

	return &workload.Error{
		Kind: workload.NotFound, Reason: ReasonJobGone,
		Message: fmt.Sprintf("job %s is no longer available: it is %s", id, state),
	}
}

// assign notes whose runner the job has now. A runner that had it before has not taken
// it, or it could not have been reserved.
func (p *provider) assign(name, id string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	maps.DeleteFunc(p.runners, func(_, other string) bool { return other == id })
	p.runners[name] = id
	p.states[id] = seenState{state: stateReserved, at: p.clock.Now()}
}

// acquisition gets the job's token. The agent token is never handed out in its place.
func (p *provider) acquisition(ctx context.Context, id string, expiry int64) (workload.Credential, error) {
	made, issued, err := p.tokens.get(ctx, id, expiry)

	switch {
	case err != nil:
		return workload.Credential{}, err
	case !issued || made.Token == "":
		return workload.Credential{}, jobGone(id, "refused a token, so it was taken or cancelled since it was reserved")
	}

	return workload.Credential{
		RunnerToken: made.Token, RegistrationURL: p.endpoint, ExpiresAt: made.ExpiresAt.Time, RunnerID: id, JobID: id,
	}, nil
}

// acquireAll gives the tokens of the jobs that were given one.
func (p *provider) acquireAll(ctx context.Context, ids []string, expiry int64) (map[string]jobToken, error) {
	var got tokensAnswer

	err := p.stackCall(ctx, http.MethodPost, "/job-acquisition-tokens", tokensBody{JobUUIDs: ids, Seconds: expiry}, &got)
	if unknown(err) {
		return nil, workload.Reject(ReasonToken, fmt.Sprintf("%s issues no job acquisition tokens: "+
			"without them an agent would need the cluster's own token; check bootstrap.config.buildkite.endpoint", p.endpoint))
	}

	if err != nil {
		return nil, p.named("getting acquisition tokens of jobs", err)
	}

	out := make(map[string]jobToken, len(got.Tokens))
	for _, made := range got.Tokens {
		out[strings.ToLower(made.JobUUID)] = made
	}

	return out, nil
}
