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
	"github.com/hyperfleet/hyperfleet/kit/step"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// poolResyncInterval is how often the pools are read to start and stop sources.
	poolResyncInterval = 2 * time.Second
	// pollWithoutWebhook and pollWithWebhook are the poll intervals of pools that set none.
	pollWithoutWebhook = time.Minute
	pollWithWebhook    = 5 * time.Minute
	// redeliveryInterval is how often the operator requests the redelivery of failed webhooks, and
	// firstRedeliveryLookback is how far back the first request goes. GitHub keeps failed webhooks for
	// three days.
	redeliveryInterval      = 10 * time.Minute
	firstRedeliveryLookback = 24 * time.Hour
	// sourceTimeout is the timeout of one poll and of one redelivery request.
	sourceTimeout = 2 * time.Minute
	// minStreamBackoff is the back-off after a stream breaks. It doubles up to maxStreamBackoff.
	minStreamBackoff = time.Second
	maxStreamBackoff = time.Minute
)

// Sources gets jobs without webhooks: it polls platforms, reads the job streams of platforms, and
// requests the redelivery of failed webhooks. Each provider has one source, whatever the number of
// its pools. Sources is a manager.Runnable that runs on the leader.
type Sources struct {
	// Client reads pools, templates and jobs, and writes jobs.
	Client client.Client
	// Live reads from the API server, not from a cache. Default: Client.
	Live      client.Reader
	Providers Providers
	Platforms Platforms
	// WebhookURL is the operator's URL as platforms call it, without a path. If it is empty, the
	// operator requests no redelivery.
	WebhookURL string
	// Clock is the source of the current time. Default: the real clock.
	Clock clock.WithTicker
	// Metrics may be nil.
	Metrics *Metrics
	// Log logs failed polls, streams and redelivery requests. Default: none.
	Log *slog.Logger
	// EnqueuePool is called for each pool whose SourceStatus changed. May be nil.
	EnqueuePool func(types.NamespacedName)

	mu       sync.Mutex
	sources  map[workload.Provider]*source
	statuses map[types.NamespacedName]SourceStatus
	// configErrors holds the pools whose settings or credentials are unusable, as of the last
	// resync.
	configErrors map[types.NamespacedName]SourceStatus
}

// SourceStatus is the result of the last poll or stream for a pool.
type SourceStatus struct {
	// Err is the error of the last poll or stream; nil if it succeeded.
	Err error
	// NotPolled is why the platform was not polled although nothing is wrong; else empty.
	NotPolled string
	// Since is when this status began.
	Since time.Time
}

// text returns the text by which two statuses are compared.
func (s SourceStatus) text() string {
	if s.Err != nil {
		return "error " + s.Err.Error()
	}

	return s.NotPolled
}

// source is the poll or the stream of one provider.
type source struct {
	provider workload.Provider
	cancel   context.CancelFunc

	mu    sync.Mutex
	pools []loadedPool
	// polledAt is the time of the last poll, and retryAfter the shortest delay until the next one.
	polledAt   time.Time
	retryAfter time.Duration
	// nextRedelivery is the time of the next redelivery request.
	nextRedelivery time.Time

	// streamed is locked while jobs of the stream are recorded. refused are those that the API server has refused.
	streamed sync.Mutex
	refused  []workload.Job
}

func (s *source) hasRefused() bool {
	s.streamed.Lock()
	defer s.streamed.Unlock()

	return len(s.refused) > 0
}

func (s *source) setPools(pools []loadedPool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	s.pools = pools
}

func (s *source) currentPools() []loadedPool {
	s.mu.Lock()
	defer s.mu.Unlock()

	return s.pools
}

// NeedLeaderElection returns true: only the leader gets jobs from platforms.
func (s *Sources) NeedLeaderElection() bool { return true }

// Start runs the sources until the context ends.
func (s *Sources) Start(ctx context.Context) error {
	s.setDefaults()

	ticker := s.Clock.NewTicker(poolResyncInterval)
	defer ticker.Stop()

	var group sync.WaitGroup

	for {
		s.syncSources(ctx, &group)

		select {
		case <-ctx.Done():
			group.Wait()

			return nil
		case <-ticker.C():
		}
	}
}

func (s *Sources) setDefaults() {
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

	s.sources = map[workload.Provider]*source{}
	s.statuses = map[types.NamespacedName]SourceStatus{}
}

// SourceStatus returns the source status of a pool, and false if the platform was not called for
// the pool yet.
func (s *Sources) SourceStatus(pool types.NamespacedName) (SourceStatus, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()

	if out, ok := s.configErrors[pool]; ok {
		return out, true
	}

	out, ok := s.statuses[pool]

	return out, ok
}

// setConfigErrors replaces the configuration errors of the pools, and enqueues the pools whose
// error changed.
func (s *Sources) setConfigErrors(errs map[types.NamespacedName]error) {
	statuses := make(map[types.NamespacedName]SourceStatus, len(errs))

	var changed []types.NamespacedName

	s.mu.Lock()
	for key, err := range errs {
		last, hadError := s.configErrors[key]
		if !hadError || last.Err.Error() != err.Error() {
			last = SourceStatus{Err: err, Since: s.Clock.Now()}
			changed = append(changed, key)
		}

		statuses[key] = last
	}

	for key := range s.configErrors {
		if errs[key] == nil {
			changed = append(changed, key)
		}
	}

	s.configErrors = statuses
	s.mu.Unlock()

	s.enqueue(changed)
}

func (s *Sources) enqueue(pools []types.NamespacedName) {
	if s.EnqueuePool == nil {
		return
	}

	for _, key := range pools {
		s.EnqueuePool(key)
	}
}

// recordResult records the result of a source for all of its pools, and enqueues the pools whose
// status changed.
func (s *Sources) recordResult(pools []loadedPool, err error) {
	s.recordStatus(pools, SourceStatus{Err: err})
}

func (s *Sources) recordStatus(pools []loadedPool, current SourceStatus) {
	current.Since = s.Clock.Now()

	var changed []types.NamespacedName

	s.mu.Lock()
	for _, pool := range pools {
		last, hasStatus := s.statuses[pool.Key()]
		if hasStatus && last.text() == current.text() {
			continue
		}

		s.statuses[pool.Key()] = current
		changed = append(changed, pool.Key())
	}
	s.mu.Unlock()

	s.enqueue(changed)
}

// syncSources starts the sources of new providers, and stops the sources that no pool needs.
func (s *Sources) syncSources(ctx context.Context, group *sync.WaitGroup) {
	byProvider, err := s.groupByProvider(ctx)
	if err != nil {
		s.Log.WarnContext(ctx, "could not sync job sources", "error", err)

		return
	}

	s.forgetPools(byProvider)

	for provider, source := range s.sources {
		if _, isNeeded := byProvider[provider]; !isNeeded {
			source.cancel()
			delete(s.sources, provider)
		}
	}

	for provider, pools := range byProvider {
		src, ok := s.sources[provider]
		if !ok {
			src = s.startSource(ctx, provider, pools, group)
		}

		src.setPools(pools)
	}
}

// forgetPools deletes the statuses of deleted pools.
func (s *Sources) forgetPools(byProvider map[workload.Provider][]loadedPool) {
	existing := map[types.NamespacedName]bool{}

	for _, pools := range byProvider {
		for _, pool := range pools {
			existing[pool.Key()] = true
		}
	}

	s.mu.Lock()
	defer s.mu.Unlock()

	maps.DeleteFunc(s.statuses, func(key types.NamespacedName, _ SourceStatus) bool { return !existing[key] })
}

// groupByProvider returns the pools by their providers. It skips a pool whose provider is
// unavailable. If the pool's own configuration is the reason, it records the error for the pool's
// condition.
func (s *Sources) groupByProvider(ctx context.Context) (map[workload.Provider][]loadedPool, error) {
	pools, err := s.Platforms.readPools(ctx, s.Client, "")
	if err != nil {
		return nil, err
	}

	out, rejection := map[workload.Provider][]loadedPool{}, map[types.NamespacedName]error{}

	for _, pool := range pools {
		if pool.template == nil || !pool.object.DeletionTimestamp.IsZero() {
			continue
		}

		provider, err := s.Providers.ProviderFor(ctx, pool.template, pool.object.Spec.Workload)

		switch {
		case err == nil:
			out[provider] = append(out[provider], pool)
		case errclass.ClassOf(err) == errclass.Configuration:
			rejection[pool.Key()] = err
		}
	}

	s.setConfigErrors(rejection)

	return out, nil
}

// startSource starts the stream of a provider, or else its polls and redelivery requests.
func (s *Sources) startSource(
	ctx context.Context, provider workload.Provider, pools []loadedPool, group *sync.WaitGroup,
) *source {
	ctx, cancel := context.WithCancel(ctx)
	src := &source{provider: provider, cancel: cancel, pools: pools}
	s.sources[provider] = src

	if streamer, ok := provider.(workload.Streamer); ok && pools[0].Runner.Queue != "" {
		group.Go(func() { s.runStream(ctx, src, streamer) })
		group.Go(func() { s.retryRefused(ctx, src) })

		return src
	}

	group.Go(func() { s.runPolls(ctx, src) })

	return src
}

// runPolls polls and requests redelivery, each when it is due, until the context ends.
func (s *Sources) runPolls(ctx context.Context, src *source) {
	for {
		pools := src.currentPools()

		untilNext := s.pollIfDue(ctx, src, pools)
		if untilRedelivery := s.redeliverIfDue(ctx, src, pools); untilRedelivery < untilNext {
			untilNext = untilRedelivery
		}

		timer := s.Clock.NewTimer(max(min(untilNext, poolResyncInterval), 10*time.Millisecond))

		select {
		case <-ctx.Done():
			timer.Stop()

			return
		case <-timer.C():
		}
	}
}

// neverDue is the delay until a poll or redelivery request that is never due.
const neverDue = 365 * 24 * time.Hour

// pollIfDue polls if a poll is due, and returns the delay until the next poll.
func (s *Sources) pollIfDue(ctx context.Context, src *source, pools []loadedPool) time.Duration {
	poller, ok := src.provider.(workload.Poller)
	interval := shortestPollInterval(pools)

	if !ok || interval <= 0 {
		return neverDue
	}

	// The interval may have changed since the last poll.
	if wait := max(interval, src.retryAfter) - s.Clock.Since(src.polledAt); wait > 0 {
		return wait
	}

	err := s.pollJobs(ctx, poller, pools)
	if ctx.Err() != nil {
		return neverDue
	}

	err = s.recordPoll(pools, err)
	s.Metrics.countSourceRequest(pools[0].Runner.Platform, "poll", err)

	if err != nil {
		s.Log.WarnContext(ctx, "could not poll CI platform", "pool", pools[0].Key().String(), "error", err)
	}

	src.polledAt, src.retryAfter = s.Clock.Now(), 0
	if known, ok := errors.AsType[*workload.Error](err); ok {
		src.retryAfter = known.RetryAfter
	}

	return max(interval, src.retryAfter)
}

// recordPoll records the result of a poll, and returns its error. If the poll failed because no
// repository is configured, this is an error only for pools that depend on polls. For the other pools recordPoll records
// NotPolled.
func (s *Sources) recordPoll(pools []loadedPool, err error) error {
	if known, ok := errors.AsType[*workload.Error](err); !ok || known.Reason != workload.ReasonRepositoriesMissing {
		s.recordResult(pools, err)

		return err
	}

	var dependent, others []loadedPool

	for _, pool := range pools {
		if dependsOnPolls(pool) {
			dependent = append(dependent, pool)
		} else {
			others = append(others, pool)
		}
	}

	s.recordStatus(others, SourceStatus{NotPolled: err.Error()})
	s.recordResult(dependent, err)

	if len(dependent) == 0 {
		return nil
	}

	return err
}

// dependsOnPolls reports whether the pool's number of machines depends on its jobs, and no webhook reports these jobs.
func dependsOnPolls(pool loadedPool) bool {
	scaling := pool.object.Spec.Scaling

	return pool.object.Spec.Workload.Webhook == nil && scaling.MinReplicas < scaling.MaxReplicas
}

// shortestPollInterval returns the shortest poll interval of the pools; 0 means that none polls.
func shortestPollInterval(pools []loadedPool) time.Duration {
	shortest := time.Duration(0)

	for _, pool := range pools {
		shortest = step.ChooseSooner(shortest, poolPollInterval(pool))
	}

	return shortest
}

func poolPollInterval(pool loadedPool) time.Duration {
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

// redeliverIfDue requests the redelivery of failed webhooks if a request is due, and returns the
// delay until the next request. All pools of a source have the same platform.
func (s *Sources) redeliverIfDue(ctx context.Context, src *source, pools []loadedPool) time.Duration {
	deliverer, ok := src.provider.(workload.Redeliverer)
	if !ok || s.WebhookURL == "" || !hasWebhook(pools) {
		return neverDue
	}

	now := s.Clock.Now()
	if wait := src.nextRedelivery.Sub(now); wait > 0 {
		return wait
	}

	since := now.Add(-firstRedeliveryLookback)
	if !src.nextRedelivery.IsZero() {
		since = now.Add(-2 * redeliveryInterval)
	}

	ctx, cancel := context.WithTimeout(ctx, sourceTimeout)
	defer cancel()

	count, err := deliverer.Redeliver(ctx, s.webhookURL(pools[0].Runner.Platform), since)
	s.Metrics.countSourceRequest(pools[0].Runner.Platform, "redelivery", err)

	switch {
	case err != nil:
		s.Log.WarnContext(ctx, "could not request redelivery of failed webhooks; polling will find their jobs instead",
			"pool", pools[0].Key().String(), "error", err)
	case count > 0:
		s.Log.InfoContext(ctx, "requested redelivery of failed webhooks", "pool", pools[0].Key().String(), "count", count)
	}

	src.nextRedelivery = now.Add(redeliveryInterval)

	return redeliveryInterval
}

func (s *Sources) webhookURL(platform string) string {
	return s.WebhookURL + "/webhooks/" + s.Platforms[platform].Traits().Slug
}

func hasWebhook(pools []loadedPool) bool {
	for _, pool := range pools {
		if pool.object.Spec.Workload.Webhook != nil {
			return true
		}
	}

	return false
}
