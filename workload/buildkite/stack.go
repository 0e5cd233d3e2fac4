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
)

// Bounds of the Stacks API.
const (
	maxPage   = 1000
	maxBatch  = 1000
	maxExpiry = time.Hour
	// defaultExpiry of reservations and tokens where the request names no time.
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
	ScheduledAt     stamp                `json:"scheduled_at"`
	RunnableAt      stamp                `json:"runnable_at"`
	Pipeline        slugOf               `json:"pipeline"`
	Build           buildOf              `json:"build"`
	Step            struct{ Key string } `json:"step"`
}

type slugOf struct {
	Slug string `json:"slug"`
}

type buildOf struct {
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

type reserveAnswer struct {
	Reserved []string `json:"reserved"`
}

type tokensBody struct {
	JobUUIDs []string `json:"job_uuids"`
	Seconds  int64    `json:"token_lifetime_seconds"`
}

type tokensAnswer struct {
	Tokens []jobToken `json:"job_acquisition_tokens"`
}

// jobToken is secret.
type jobToken struct {
	JobUUID   string `json:"job_uuid"`
	Token     string `json:"job_acquisition_token"`
	ExpiresAt stamp  `json:"expires_at"`
}

type statesBody struct {
	JobUUIDs []string `json:"job_uuids"`
}

type statesAnswer struct {
	States map[string]string `json:"states"`
}

// register makes or renews the stack. Doing so again changes nothing.
func (p *provider) register(ctx context.Context) error {
	metadata := p.metadata
	if metadata == nil {
		metadata = map[string]string{} // the field is required
	}

	err := p.client.call(ctx, http.MethodPost, "/stacks/register",
		registerBody{Key: p.stack, Type: "custom", QueueKey: p.queue, Metadata: metadata}, nil)
	if err != nil {
		return p.explain("registering the stack "+p.stack, err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.registered = true

	return nil
}

// stackCall calls a path of the stack, which it registers before the first call, and anew
// if Buildkite no longer knows it. A refusal is an *answer, or explained already.
func (p *provider) stackCall(ctx context.Context, method, path string, body, into any) error {
	p.mu.Lock()
	registered := p.registered
	p.mu.Unlock()

	if !registered {
		if err := p.register(ctx); err != nil {
			return err
		}
	}

	path = "/stacks/" + url.PathEscape(p.stack) + path

	err := p.client.call(ctx, method, path, body, into)
	if !registered || !unknown(err) {
		return err
	}

	if err := p.register(ctx); err != nil {
		return err
	}

	return p.client.call(ctx, method, path, body, into)
}

// page gives one page of the jobs that are scheduled in the queue, and keeps whether the
// queue is paused.
func (p *provider) page(ctx context.Context, after string, limit int) (scheduledPage, error) {
	query := url.Values{"queue_key": {p.queue}, "limit": {strconv.Itoa(limit)}}
	if after != "" {
		query.Set("after", after)
	}

	var page scheduledPage

	at := p.clock.Now()
	if err := p.stackCall(ctx, http.MethodGet, "/scheduled-jobs?"+query.Encode(), nil, &page); err != nil {
		return page, p.named("listing jobs", err)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.paused, p.pausedAt = page.ClusterQueue.DispatchPaused, at

	return page, nil
}

// jobStates asks for the states of jobs, by their ids. A job that Buildkite does not know
// is not among them.
func (p *provider) jobStates(ctx context.Context, ids []string) (map[string]string, error) {
	out := map[string]string{}

	for len(ids) > 0 {
		batch := ids[:min(len(ids), maxBatch)]
		ids = ids[len(batch):]

		var got statesAnswer

		err := p.stackCall(ctx, http.MethodPost, "/jobs/get-states", statesBody{JobUUIDs: batch}, &got)
		if unknown(err) {
			continue
		}

		if err != nil {
			return nil, p.named("asking for the states of jobs", err)
		}

		for id, state := range got.States {
			out[id] = strings.ToLower(state)
		}
	}

	return out, nil
}

// named explains a refusal; what is explained already, or no refusal, is left as it is.
func (p *provider) named(what string, err error) error {
	if explained(err) {
		return err
	}

	return p.explain(what, err)
}
