// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demand

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// lookAtPools is how often the pools are read for new sources.
	lookAtPools = 2 * time.Second
	// pollWithoutWebhook and pollWithWebhook hold where a pool names no interval.
	pollWithoutWebhook = time.Minute
	pollWithWebhook    = 5 * time.Minute
	// redeliverEvery is how often failed webhooks are asked for again, and redeliverSince
	// how far back the first time: GitHub keeps them for three days.
	redeliverEvery = 10 * time.Minute
	redeliverSince = 24 * time.Hour
	// sourceTimeout bounds one poll and one round of redelivery.
	sourceTimeout = 2 * time.Minute
	// streamPause is the first pause after a broken stream; it doubles up to a minute.
	streamPause    = time.Second
	maxStreamPause = time.Minute
)

// Sources hear of jobs without webhooks: by polling platforms, by streams that platforms
// offer, and by having failed webhooks delivered again. Each provider has one of each,
// whatever the number of its pools. It is a manager.Runnable of the leader.
type Sources struct {
	// Client reads pools, templates and jobs, and writes jobs.
	Client client.Client
	// Live reads from the API server itself. Default: Client.
	Live      client.Reader
	Providers Providers
	Platforms Platforms
	// WebhookURL is the operator's address as platforms know it, without a path; empty
	// means that nothing is asked for again.
	WebhookURL string
	// Clock tells the time. Default: the real clock.
	Clock clock.WithTicker
	// Metrics may be nil.
	Metrics *Metrics
	// Log says what goes wrong. Default: none.
	Log *slog.Logger
	// Wake is called for pools whose sources have got changed of their own state. May be nil.
	Wake func(types.NamespacedName)

	mu       sync.Mutex
	running  map[workload.Provider]*source
	statuses map[types.NamespacedName]SourceStatus
	// refused are the pools whose settings or credentials can't be used, as of the last look.
	refused map[types.NamespacedName]SourceStatus
}

// SourceStatus is how a pool's jobs are heard of at present.
type SourceStatus struct {
	// Err is what is wrong with the poll or the stream; nil when the last was well.
	Err error
	// NotPolled is why nothing was asked for, which is all right; else empty.
	NotPolled string
	// Since is when that began.
	Since time.Time
}

// says is what tells a status from another.
func (s SourceStatus) says() string {
	if s.Err != nil {
		return "error " + s.Err.Error()
	}

	return s.NotPolled
}

// source is what runs for one provider.
type source struct {
	provider workload.Provider
	cancel   context.CancelFunc

	mu    sync.Mutex
	pools []readPool
	// due are the times of the next poll and the next redelivery.
	poll, redeliver time.Time
}

func (s *source) set(pools []readPool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.pools = pools
}

func (s *source) now() []readPool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.pools
}

// NeedLeaderElection says that only the leader asks.
func (s *Sources) NeedLeaderElection() bool { return true }

// Start hears of jobs until the context ends.
func (s *Sources) Start(ctx context.Context) error {
	s.defaults()

	ticker := s.Clock.NewTicker(lookAtPools)
	defer ticker.Stop()

	var group sync.WaitGroup

	for {
		s.look(ctx, &group)

		select {
		case <-ctx.Done():
			group.Wait()

			return nil
		case <-ticker.C():
		}
	}
}

func (s *Sources) defaults() {
	s.mu.Lock()
	defer s.mu.Unlock()

	if s.Live == nil {
		s.Live = s.Client
	}

	if s.Clock == nil {
		s.Clock = clock.RealClock{}
	}

	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}

	s.running = map[workload.Provider]*source{}
	s.statuses = map[types.NamespacedName]SourceStatus{}
}

// SourceStatus tells how the pool's jobs are heard of; false where nothing was asked yet.
func (s *Sources) SourceStatus(pool types.NamespacedName) (SourceStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if out, ok := s.refused[pool]; ok {
		return out, true
	}

	out, ok := s.statuses[pool]

	return out, ok
}

// refuse keeps why pools have no source, and wakes those for which that is changed.
func (s *Sources) refuse(why map[types.NamespacedName]error) {
	refused := make(map[types.NamespacedName]SourceStatus, len(why))

	var changed []types.NamespacedName

	s.mu.Lock()
	for key, err := range why {
		last, known := s.refused[key]
		if !known || last.Err.Error() != err.Error() {
			last = SourceStatus{Err: err, Since: s.Clock.Now()}
			changed = append(changed, key)
		}

		refused[key] = last
	}

	for key := range s.refused {
		if why[key] == nil {
			changed = append(changed, key)
		}
	}

	s.refused = refused
	s.mu.Unlock()

	s.wake(changed)
}

func (s *Sources) wake(pools []types.NamespacedName) {
	if s.Wake == nil {
		return
	}

	for _, key := range pools {
		s.Wake(key)
	}
}

// note keeps how a source went for all of its pools, and wakes those for which that is
// changed.
func (s *Sources) note(pools []readPool, err error) { s.noteStatus(pools, SourceStatus{Err: err}) }

func (s *Sources) noteStatus(pools []readPool, now SourceStatus) {
	now.Since = s.Clock.Now()

	var changed []types.NamespacedName

	s.mu.Lock()
	for _, pool := range pools {
		last, known := s.statuses[pool.Key()]
		if known && last.says() == now.says() {
			continue
		}

		s.statuses[pool.Key()] = now
		changed = append(changed, pool.Key())
	}
	s.mu.Unlock()

	s.wake(changed)
}

// look starts the sources of pools that are new, and ends those that no pool needs.
func (s *Sources) look(ctx context.Context, group *sync.WaitGroup) {
	byProvider, err := s.providers(ctx)
	if err != nil {
		s.Log.WarnContext(ctx, "sources of jobs were not looked at", "error", err)

		return
	}

	s.forget(byProvider)

	for provider, source := range s.running {
		if _, wanted := byProvider[provider]; !wanted {
			source.cancel()
			delete(s.running, provider)
		}
	}

	for provider, pools := range byProvider {
		at, ok := s.running[provider]
		if !ok {
			at = s.begin(ctx, provider, pools, group)
		}

		at.set(pools)
	}
}

// forget drops what is known of pools that are gone.
func (s *Sources) forget(byProvider map[workload.Provider][]readPool) {
	there := map[types.NamespacedName]bool{}

	for _, pools := range byProvider {
		for _, pool := range pools {
			there[pool.Key()] = true
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	maps.DeleteFunc(s.statuses, func(key types.NamespacedName, _ SourceStatus) bool { return !there[key] })
}

// providers gives the pools of each provider. A pool whose provider can't be had is left
// out; where its own settings are why, its condition says so.
func (s *Sources) providers(ctx context.Context) (map[workload.Provider][]readPool, error) {
	pools, err := s.Platforms.readPools(ctx, s.Client, "")
	if err != nil {
		return nil, err
	}

	out, refused := map[workload.Provider][]readPool{}, map[types.NamespacedName]error{}

	for _, pool := range pools {
		if pool.template == nil || !pool.object.DeletionTimestamp.IsZero() {
			continue
		}

		provider, err := s.Providers.For(ctx, pool.template, pool.object.Spec.Workload)

		switch {
		case err == nil:
			out[provider] = append(out[provider], pool)
		case errclass.Of(err) == errclass.Configuration:
			refused[pool.Key()] = err
		}
	}

	s.refuse(refused)

	return out, nil
}

// begin starts what runs for a provider.
func (s *Sources) begin(
	ctx context.Context, provider workload.Provider, pools []readPool, group *sync.WaitGroup,
) *source {
	ctx, cancel := context.WithCancel(ctx)
	at := &source{provider: provider, cancel: cancel, pools: pools}
	s.running[provider] = at

	if streamer, ok := provider.(workload.Streamer); ok && pools[0].Runner.Queue != "" {
		group.Go(func() { s.stream(ctx, at, streamer) })

		return at
	}

	group.Go(func() { s.ask(ctx, at) })

	return at
}

// ask polls and asks for failed webhooks, each when it is due.
func (s *Sources) ask(ctx context.Context, at *source) {
	for {
		pools := at.now()

		next := s.pollDue(ctx, at, pools)
		if again := s.redeliverDue(ctx, at, pools); again < next {
			next = again
		}

		timer := s.Clock.NewTimer(max(min(next, lookAtPools), 10*time.Millisecond))

		select {
		case <-ctx.Done():
			timer.Stop()

			return
		case <-timer.C():
		}
	}
}

// never is longer than anybody waits.
const never = 365 * 24 * time.Hour

// pollDue polls if that is due, and says when it is next.
func (s *Sources) pollDue(ctx context.Context, at *source, pools []readPool) time.Duration {
	poller, ok := at.provider.(workload.Poller)
	interval := pollInterval(pools)

	if !ok || interval <= 0 {
		return never
	}

	if wait := at.poll.Sub(s.Clock.Now()); wait > 0 {
		return min(wait, interval)
	}

	err := s.poll(ctx, poller, pools)
	if ctx.Err() != nil {
		return never
	}

	err = s.noteAsked(pools, err)
	s.Metrics.source(pools[0].Runner.Platform, "poll", err)

	if err != nil {
		s.Log.WarnContext(ctx, "CI platform was not polled", "pool", pools[0].Key().String(), "error", err)
	}

	wait := interval
	if known, ok := errors.AsType[*workload.Error](err); ok {
		wait = max(wait, known.After)
	}

	at.poll = s.Clock.Now().Add(wait)

	return wait
}

// noteAsked keeps how a poll went, and gives what is wrong with it. Where there was nothing to ask
// for, nothing is wrong with the pools that hear of jobs by webhooks, or need no job.
func (s *Sources) noteAsked(pools []readPool, err error) error {
	if known, ok := errors.AsType[*workload.Error](err); !ok || known.Reason != workload.ReasonRepositoriesMissing {
		s.note(pools, err)

		return err
	}

	var deaf, others []readPool

	for _, pool := range pools {
		scaling := pool.object.Spec.Scaling
		if pool.object.Spec.Workload.Webhook == nil && scaling.MinReplicas < scaling.MaxReplicas {
			deaf = append(deaf, pool)
		} else {
			others = append(others, pool)
		}
	}

	s.noteStatus(others, SourceStatus{NotPolled: err.Error()})
	s.note(deaf, err)

	if len(deaf) == 0 {
		return nil
	}

	return err
}

// pollInterval is the shortest that any of the pools asks for; 0 means never.
func pollInterval(pools []readPool) time.Duration {
	shortest := time.Duration(0)

	for _, pool := range pools {
		if every := pollEvery(pool); every > 0 && (shortest == 0 || every < shortest) {
			shortest = every
		}
	}

	return shortest
}

func pollEvery(pool readPool) time.Duration {
	spec := pool.object.Spec

	switch {
	case spec.Demand != nil && spec.Demand.Polling != nil && spec.Demand.Polling.Disabled:
		return 0
	case spec.Demand != nil && spec.Demand.Polling != nil && spec.Demand.Polling.Interval != nil:
		return spec.Demand.Polling.Interval.Duration
	case pool.Runner.PollInterval > 0:
		return pool.Runner.PollInterval
	case spec.Workload.Webhook == nil:
		return pollWithoutWebhook
	default:
		return pollWithWebhook
	}
}

// redeliverDue asks for failed webhooks if that is due, and says when it is next.
func (s *Sources) redeliverDue(ctx context.Context, at *source, pools []readPool) time.Duration {
	deliverer, ok := at.provider.(workload.Redeliverer)
	if !ok || s.WebhookURL == "" || !takesWebhooks(pools) {
		return never
	}

	now := s.Clock.Now()
	if wait := at.redeliver.Sub(now); wait > 0 {
		return wait
	}

	since := now.Add(-redeliverSince)
	if !at.redeliver.IsZero() {
		since = now.Add(-2 * redeliverEvery)
	}

	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()

	count, err := deliverer.Redeliver(ctx, s.webhookURL(pools[0].Runner.Platform), since)
	s.Metrics.source(pools[0].Runner.Platform, "redelivery", err)

	switch {
	case err != nil:
		s.Log.WarnContext(ctx, "failed webhooks were not asked for again: polling finds their jobs",
			"pool", pools[0].Key().String(), "error", err)
	case count > 0:
		s.Log.InfoContext(ctx, "failed webhooks were asked for again", "pool", pools[0].Key().String(), "count", count)
	}

	at.redeliver = now.Add(redeliverEvery)

	return redeliverEvery
}

func (s *Sources) webhookURL(platform string) string {
	return s.WebhookURL + "/webhooks/" + s.Platforms[platform].Traits().Slug
}

func takesWebhooks(pools []readPool) bool {
	for _, pool := range pools {
		if pool.object.Spec.Workload.Webhook != nil {
			return true
		}
	}

	return false
}
