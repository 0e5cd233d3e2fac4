// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/workload"
)

// Limits of the Stacks API.
const (
	maxPageSize  = 1000
	maxBatchSize = 1000
	maxExpiry    = time.Hour
	// defaultExpiry is the lifetime of reservations and tokens if the request sets no timeout.
	defaultExpiry = 15 * time.Minute
)

type registerBody struct {
	Key      string            `json:"key"`
	Type     string            `json:"type"`
	QueueKey string            `json:"queue_key"`
	Metadata map[string]string `json:"metadata"`
}

type scheduledJob struct {
	ID              string               `json:"id"`
	Priority        int64                `json:"priority"`
	AgentQueryRules []string             `json:"agent_query_rules"`
	ScheduledAt     jsonTime             `json:"scheduled_at"`
	RunnableAt      jsonTime             `json:"runnable_at"`
	Pipeline        slugPayload          `json:"pipeline"`
	Build           buildPayload         `json:"build"`
	Step            struct{ Key string } `json:"step"`
}

type slugPayload struct {
	Slug string `json:"slug"`
}

type buildPayload struct {
	Number int64 `json:"number"`
}

type scheduledPage struct {
	Jobs         []scheduledJob `json:"jobs"`
	ClusterQueue struct {
		DispatchPaused bool `json:"dispatch_paused"`
	} `json:"cluster_queue"`
	PageInfo struct {
		HasNextPage bool   `json:"has_next_page"`
		EndCursor   string `json:"end_cursor"`
	} `json:"page_info"`
}

type reserveBody struct {
	JobUUIDs []string `json:"job_uuids"`
	Seconds  int64    `json:"reservation_expiry_seconds"`
}

type reserveResponse struct {
	Reserved    []string `json:"reserved"`
	NotReserved []string `json:"not_reserved"`
}

type tokensBody struct {
	JobUUIDs []string `json:"job_uuids"`
	Seconds  int64    `json:"token_lifetime_seconds"`
}

type tokensResponse struct {
	Tokens    []jobToken `json:"job_acquisition_tokens"`
	NotIssued []string   `json:"not_issued"`
}

// jobToken is the acquisition token of one job. It is secret.
type jobToken struct {
	JobUUID   string   `json:"job_uuid"`
	Token     string   `json:"job_acquisition_token"`
	ExpiresAt jsonTime `json:"expires_at"`
}

type statesBody struct {
	JobUUIDs []string `json:"job_uuids"`
}

type statesResponse struct {
	States map[string]string `json:"states"`
}

// registerStack creates or renews the stack. Repeating it has no further effect.
func (p *provider) registerStack(ctx context.Context) error {
	metadata := p.metadata
	if metadata == nil {
		metadata = map[string]string{} // the field is required
	}

	err := p.client.call(ctx, http.MethodPost, "/stacks/register",
		registerBody{Key: p.stack, Type: "custom", QueueKey: p.queue, Metadata: metadata}, nil)
	if err != nil {
		return p.explain("register stack "+p.stack, err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.isRegistered = true

	return nil
}

// callStackAPI calls a path of the stack. It registers the stack before the first call, and again
// if Buildkite no longer knows the stack. An error response is a *responseError, or already
// explained.
func (p *provider) callStackAPI(ctx context.Context, method, path string, body, out any) error {
	p.mu.Lock()
	wasRegistered := p.isRegistered
	p.mu.Unlock()

	if !wasRegistered {
		if err := p.registerStack(ctx); err != nil {
			return err
		}
	}

	path = "/stacks/" + url.PathEscape(p.stack) + path

	err := p.client.call(ctx, method, path, body, out)
	if !wasRegistered || !isNotFound(err) {
		return err
	}

	if err := p.registerStack(ctx); err != nil {
		return err
	}

	return p.client.call(ctx, method, path, body, out)
}

// fetchPage returns one page of the jobs that are scheduled in the queue, and stores whether the
// queue is paused.
func (p *provider) fetchPage(ctx context.Context, cursor string, limit int) (scheduledPage, error) {
	query := url.Values{"queue_key": {p.queue}, "limit": {strconv.Itoa(limit)}}
	if cursor != "" {
		query.Set("after", cursor)
	}

	var page scheduledPage

	requestedAt := p.clock.Now()
	if err := p.callStackAPI(ctx, http.MethodGet, "/scheduled-jobs?"+query.Encode(), nil, &page); err != nil {
		return page, p.explainOnce("list jobs", err)
	}

	if page.Jobs == nil {
		return page, p.explain("list jobs", workload.ErrNoData)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.isPaused, p.pausedAt = page.ClusterQueue.DispatchPaused, requestedAt

	return page, nil
}

// fetchJobStates returns the states of jobs by job id. The result omits jobs that Buildkite does
// not know.
func (p *provider) fetchJobStates(ctx context.Context, ids []string) (map[string]string, error) {
	out := map[string]string{}

	for len(ids) > 0 {
		batch := ids[:min(len(ids), maxBatchSize)]
		ids = ids[len(batch):]

		var response statesResponse

		err := p.callStackAPI(ctx, http.MethodPost, "/jobs/get-states", statesBody{JobUUIDs: batch}, &response)
		if isNotFound(err) {
			continue // Buildkite knows none of these jobs
		}

		if err != nil {
			return nil, p.explainOnce("read the states of jobs", err)
		}

		if response.States == nil {
			return nil, p.explain("read the states of jobs", workload.ErrNoData)
		}

		for id, state := range response.States {
			out[id] = strings.ToLower(state)
		}
	}

	return out, nil
}

// explainOnce explains an error unless it is explained already.
func (p *provider) explainOnce(action string, err error) error {
	if isExplained(err) {
		return err
	}

	return p.explain(action, err)
}
