// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	gl "gitlab.com/gitlab-org/api/client-go"

	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	perPage = 100
	// maxPages bounds the pages of one list.
	maxPages = 500
	// maxListAttempts bounds how often a list is read again because it changed while its pages were
	// read.
	maxListAttempts = 3
	// listTimeout bounds the time for all pages of a list. Each call has the provider's timeout
	// too.
	listTimeout = 2 * time.Minute
)

var errTooManyPages = errors.New("the runner list has too many pages")

// cachedRunners returns the runner list, which is at most maxAge old. Concurrent callers share one
// list.
func (p *provider) cachedRunners(ctx context.Context, maxAge time.Duration) ([]workload.Runner, error) {
	return p.runnerList.Get(ctx, maxAge)
}

// removeFromList removes a deleted runner from the shared runner list.
func (p *provider) removeFromList(id string) {
	p.runnerList.Update(func(runners []workload.Runner) []workload.Runner {
		return slices.DeleteFunc(slices.Clone(runners), func(runner workload.Runner) bool { return runner.ID == id })
	})
}

// fetchRunners reads all pages of the runner list. If a runner is deleted meanwhile, the pages
// shift and a runner could be missed, so fetchRunners then starts again, at most maxListAttempts
// times.
func (p *provider) fetchRunners(ctx context.Context) ([]workload.Runner, error) {
	for attempt := 1; ; attempt++ {
		runners, isStable, err := p.fetchRunnersOnce(ctx)
		if err != nil || isStable || attempt == maxListAttempts {
			return runners, err
		}
	}
}

// fetchRunnersOnce reads all pages of the runner list. It returns false if the total number changed between
// pages, because a runner can then be missing.
func (p *provider) fetchRunnersOnce(ctx context.Context) (runners []workload.Runner, isStable bool, err error) {
	total := int64(-1) // unknown
	isStable = true

	for page, pages := int64(1), 0; page > 0; pages++ {
		if pages == maxPages {
			return nil, false, errTooManyPages
		}

		found, resp, err := p.fetchPage(ctx, page)
		if err != nil {
			return nil, false, err
		}

		isStable = isStable && (total < 0 || total == resp.TotalItems)
		total = resp.TotalItems

		for i := range found {
			runners = append(runners, found[i].toRunner())
		}

		page = resp.NextPage
	}

	return runners, isStable, nil
}

// listedRunner is a runner in a list. The library's type omits whether the runner runs a job.
type listedRunner struct {
	ID          int64  `json:"id"`
	Description string `json:"description"`
	Paused      bool   `json:"paused"`
	Online      *bool  `json:"online"`
	// Execution is active or idle. GitLab before version 18 omits it.
	Execution string `json:"job_execution_status"`
}

// toRunner converts the runner. A paused runner counts as offline, because it takes no jobs: it was
// busy when Deregister paused it.
func (r *listedRunner) toRunner() workload.Runner {
	name, ownerLabels := parseDescription(r.Description)

	return workload.Runner{
		ID: strconv.FormatInt(r.ID, 10), Name: name, Labels: ownerLabels,
		Online: r.Online != nil && *r.Online && !r.Paused, Busy: r.Execution == "active",
	}
}

// fetchPage returns one page of the scope's own runners, without runners that it shares with other
// scopes.
func (p *provider) fetchPage(ctx context.Context, page int64) ([]listedRunner, *gl.Response, error) {
	path := "runners/all"

	switch p.scope.kind {
	case projectScope:
		path = "projects/" + gl.PathEscape(p.scope.name) + "/runners"
	case groupScope:
		path = "groups/" + gl.PathEscape(p.scope.name) + "/runners"
	}

	opts := &gl.ListRunnersOptions{ListOptions: gl.ListOptions{Page: page, PerPage: perPage}, Type: &p.scope.kind}

	req, err := p.client.NewRequest(http.MethodGet, path, opts, []gl.RequestOptionFunc{gl.WithContext(ctx)})
	if err != nil {
		return nil, nil, fmt.Errorf("list runners of %s: %w", p.scope, p.redactor.RedactError(err))
	}

	var found []listedRunner

	resp, err := p.client.Do(req, &found)
	if err != nil {
		return nil, nil, p.explain("list runners", readRequirement, err)
	}

	if found == nil {
		return nil, nil, p.explain("list runners", readRequirement, workload.ErrNoData)
	}

	return found, resp, nil
}
