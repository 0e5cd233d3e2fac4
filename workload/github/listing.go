// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"strconv"
	"strings"
	"time"

	gh "github.com/google/go-github/v88/github"

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

// listed gives the runners by name, at most maxAge old. Callers at the same time share
// one listing. While only the reserve of the rate limit is left there is one a minute.
func (p *provider) listed(ctx context.Context, maxAge time.Duration) (map[string]workload.Runner, error) {
	return p.list.Get(ctx, maxAge)
}

// slowed refuses a listing too soon after the last while the rate limit runs low.
func (p *provider) slowed() error {
	if _, low := p.budget.low(); !low {
		return nil
	}

	age, have := p.list.Age()
	if !have || age >= slowest {
		return nil
	}

	return limitedError(slowest-age, "listing runners waits: GitHub's rate limit is almost spent, so there is one listing a minute")
}

// unlist takes out a runner that is known to be gone.
func (p *provider) unlist(id string) {
	p.list.Change(func(old map[string]workload.Runner) map[string]workload.Runner {
		left := maps.Clone(old)
		maps.DeleteFunc(left, func(_ string, runner workload.Runner) bool { return runner.ID == id })

		return left
	})
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
