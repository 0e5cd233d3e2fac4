// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	gh "github.com/google/go-github/v88/github"
	"golang.org/x/sync/singleflight"

	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	perPage = 100
	// maxPages bounds a listing; GitHub allows 10,000 runners in a group.
	maxPages = 500
	// relists bounds how often a listing that changed while it was paged is taken anew.
	relists = 3
	// listTimeout bounds a whole listing; each of its calls has the provider's timeout.
	listTimeout = 2 * time.Minute
)

var errEndless = errors.New("the listing of runners does not end")

// listing is the scope's runners as all callers share them.
type listing struct {
	flight singleflight.Group

	mu sync.Mutex
	// at is when the listing was begun: what it says is no newer.
	at      time.Time
	have    bool
	runners map[string]workload.Runner
}

func (l *listing) get(oldest time.Time) (map[string]workload.Runner, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.runners, l.have && !l.at.Before(oldest)
}

func (l *listing) put(at time.Time, runners map[string]workload.Runner) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if !l.have || !at.Before(l.at) {
		l.at, l.have, l.runners = at, true, runners
	}
}

// remove takes out a runner that is known to be gone. Callers hold the old map: it is
// left as it is.
func (l *listing) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.runners = maps.Clone(l.runners)
	maps.DeleteFunc(l.runners, func(_ string, runner workload.Runner) bool { return runner.ID == id })
}

func (l *listing) age(now time.Time) (time.Duration, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return now.Sub(l.at), l.have
}

// listed gives the runners by name, at most maxAge old. Callers at the same time share
// one listing. While only the reserve of the rate limit is left there is one a minute.
func (p *provider) listed(ctx context.Context, maxAge time.Duration) (map[string]workload.Runner, error) {
	oldest := p.clock.Now().Add(-max(maxAge, 0))

	// A listing that was under way when this call came may be too old; the next is not.
	for {
		if runners, fresh := p.list.get(oldest); fresh {
			return runners, nil
		}

		if err := p.slowed(); err != nil {
			return nil, err
		}

		if err := p.share(ctx, oldest); err != nil {
			return nil, err
		}
	}
}

// share lists once for everybody who waits. It goes on when one of them goes away.
func (p *provider) share(ctx context.Context, oldest time.Time) error {
	done := p.list.flight.DoChan("list", func() (any, error) {
		if _, fresh := p.list.get(oldest); fresh {
			return nil, nil //nolint:nilnil // the listing is kept beside
		}

		shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), max(listTimeout, p.timeout))
		defer cancel()

		begun := p.clock.Now()

		runners, err := p.listAll(shared)
		if err != nil {
			return nil, err
		}

		p.list.put(begun, runners)

		return nil, nil //nolint:nilnil // the listing is kept beside
	})

	select {
	case result := <-done:
		return result.Err
	case <-ctx.Done():
		return fmt.Errorf("list runners of %s: %w", p.urls.scope, ctx.Err())
	}
}

// slowed refuses a listing too soon after the last while the rate limit runs low.
func (p *provider) slowed() error {
	if _, low := p.budget.low(); !low {
		return nil
	}

	age, have := p.list.age(p.clock.Now())
	if !have || age >= slowest {
		return nil
	}

	return limitedError(slowest-age, "listing runners waits: GitHub's rate limit is almost spent, so there is one listing a minute")
}

// listAll pages through the runners. Pages shift when a runner goes away meanwhile, and
// one could be missed: then it is begun again.
func (p *provider) listAll(ctx context.Context) (map[string]workload.Runner, error) {
	for try := 1; ; try++ {
		runners, steady, err := p.listOnce(ctx)
		if err != nil || steady || try == relists {
			return runners, err
		}
	}
}

func (p *provider) listOnce(ctx context.Context) (map[string]workload.Runner, bool, error) {
	runners, total := map[string]workload.Runner{}, -1
	steady := true

	for page, count := 1, 0; page > 0; count++ {
		if count == maxPages {
			return nil, false, errEndless
		}

		found, next, err := p.listPage(ctx, paged(page))
		if err != nil {
			return nil, false, err
		}

		steady = steady && (total < 0 || total == found.TotalCount)
		total = found.TotalCount

		for _, runner := range found.Runners {
			runners[runner.GetName()] = runnerOf(runner)
		}

		page = next
	}

	return runners, steady, nil
}

func (p *provider) listPage(ctx context.Context, query url.Values) (*gh.Runners, int, error) {
	found := &gh.Runners{}
	call := request{class: work, what: "listing runners", path: p.urls.scope.path() + "/actions/runners", query: query}

	resp, err := p.send(ctx, call, found)
	if err != nil {
		return nil, 0, p.explain(call.what, p.urls.scope.needs(), err)
	}

	return found, resp.NextPage, nil
}

// byName asks for one runner, past the shared listing.
func (p *provider) byName(ctx context.Context, name string) (workload.Runner, bool, error) {
	query := paged(1)
	query.Set("name", name)

	found, _, err := p.listPage(ctx, query)
	if err != nil {
		return workload.Runner{}, false, err
	}

	for _, runner := range found.Runners {
		if strings.EqualFold(runner.GetName(), name) {
			return runnerOf(runner), true, nil
		}
	}

	return workload.Runner{}, false, nil
}

func runnerOf(runner *gh.Runner) workload.Runner {
	out := workload.Runner{
		ID: strconv.FormatInt(runner.GetID(), 10), Name: runner.GetName(),
		Online: runner.GetStatus() == "online", Busy: runner.GetBusy(),
	}
	for _, label := range runner.Labels {
		out.Labels = append(out.Labels, label.GetName())
	}

	return out
}
