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
	// maxPages bounds the pages of one list. GitHub allows 10,000 runners in a group.
	maxPages = 500
	// maxListAttempts bounds how often a list is read again because it changed while its pages were
	// read.
	maxListAttempts = 3
	// listTimeout bounds the time for all pages of a list. Each call has the provider's timeout
	// too.
	listTimeout = 2 * time.Minute
)

var errTooManyPages = errors.New("the runner list has too many pages")

// cachedRunners returns the runners by name. The list is at most maxAge old, and concurrent callers
// share one list. While only the reserve of the rate limit is left, the list is read once a minute.
func (p *provider) cachedRunners(ctx context.Context, maxAge time.Duration) (map[string]workload.Runner, error) {
	return p.runnerList.Get(ctx, maxAge)
}

// checkListAllowed returns an error if only the reserve of the rate limit is left and the last list
// is less than slowInterval old.
func (p *provider) checkListAllowed() error {
	if _, isLow := p.budget.checkLow(); !isLow {
		return nil
	}

	age, isCached := p.runnerList.Age()
	if !isCached || age >= slowInterval {
		return nil
	}

	return newRateLimitError(slowInterval-age,
		"list runners: GitHub's rate limit is almost reached, so runners are listed once a minute")
}

// removeFromList removes a deleted runner from the shared runner list.
func (p *provider) removeFromList(id string) {
	p.runnerList.Update(func(runners map[string]workload.Runner) map[string]workload.Runner {
		remaining := maps.Clone(runners)
		maps.DeleteFunc(remaining, func(_ string, runner workload.Runner) bool { return runner.ID == id })

		return remaining
	})
}

// fetchRunners reads all pages of the runner list. If a runner is deleted meanwhile, the pages
// shift and a runner could be missed, so fetchRunners then starts again, at most maxListAttempts
// times.
func (p *provider) fetchRunners(ctx context.Context) (map[string]workload.Runner, error) {
	for attempt := 1; ; attempt++ {
		runners, isStable, err := p.fetchRunnersOnce(ctx)
		if err != nil || isStable || attempt == maxListAttempts {
			return runners, err
		}
	}
}

// fetchRunnersOnce reads all pages of the runner list. It returns false if the total number changed between
// pages, because a runner can then be missing.
func (p *provider) fetchRunnersOnce(ctx context.Context) (runners map[string]workload.Runner, isStable bool, err error) {
	runners, isStable = map[string]workload.Runner{}, true
	total := -1 // unknown

	for page, pages := 1, 0; page > 0; pages++ {
		if pages == maxPages {
			return nil, false, errTooManyPages
		}

		found, next, err := p.fetchPage(ctx, pageQuery(page))
		if err != nil {
			return nil, false, err
		}

		isStable = isStable && (total < 0 || total == found.TotalCount)
		total = found.TotalCount

		for _, runner := range found.Runners {
			runners[runner.GetName()] = convertRunner(runner)
		}

		page = next
	}

	return runners, isStable, nil
}

func (p *provider) fetchPage(ctx context.Context, query url.Values) (runners *gh.Runners, nextPage int, err error) {
	found := &gh.Runners{}
	call := request{class: classRunner, action: "list runners", path: p.urls.scope.path() + "/actions/runners", query: query}

	resp, err := p.send(ctx, call, found)
	if err != nil {
		return nil, 0, p.explain(call.action, p.urls.scope.runnersRequirement(), err)
	}

	if found.Runners == nil {
		return nil, 0, p.explain(call.action, "", workload.ErrNoData)
	}

	return found, resp.NextPage, nil
}

// fetchRunnerByName reads one runner without the shared list. It returns false if no runner has the name.
func (p *provider) fetchRunnerByName(ctx context.Context, name string) (workload.Runner, bool, error) {
	query := pageQuery(1)
	query.Set("name", name)

	found, _, err := p.fetchPage(ctx, query)
	if err != nil {
		return workload.Runner{}, false, err
	}

	for _, runner := range found.Runners {
		if strings.EqualFold(runner.GetName(), name) {
			return convertRunner(runner), true, nil
		}
	}

	return workload.Runner{}, false, nil
}

func convertRunner(runner *gh.Runner) workload.Runner {
	out := workload.Runner{
		ID: strconv.FormatInt(runner.GetID(), 10), Name: runner.GetName(),
		Online: runner.GetStatus() == "online", Busy: runner.GetBusy(),
	}
	for _, label := range runner.Labels {
		out.Labels = append(out.Labels, label.GetName())
	}

	return out
}
