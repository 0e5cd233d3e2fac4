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
	// maxPages bounds a listing.
	maxPages = 500
	// relists bounds how often a listing that changed while it was paged is taken anew.
	relists = 3
	// listTimeout bounds a whole listing; each of its calls has the provider's timeout.
	listTimeout = 2 * time.Minute
)

var errEndless = errors.New("the listing of runners does not end")

// listed gives the runners, at most maxAge old. Callers at the same time share one
// listing.
func (p *provider) listed(ctx context.Context, maxAge time.Duration) ([]workload.Runner, error) {
	return p.list.Get(ctx, maxAge)
}

// unlist takes out a runner that is known to be gone.
func (p *provider) unlist(id string) {
	p.list.Change(func(old []workload.Runner) []workload.Runner {
		return slices.DeleteFunc(slices.Clone(old), func(runner workload.Runner) bool { return runner.ID == id })
	})
}

// listAll pages through the runners. Pages shift when a runner goes away meanwhile, and
// one could be missed: then it is begun again.
func (p *provider) listAll(ctx context.Context) ([]workload.Runner, error) {
	for try := 1; ; try++ {
		runners, steady, err := p.listOnce(ctx)
		if err != nil || steady || try == relists {
			return runners, err
		}
	}
}

func (p *provider) listOnce(ctx context.Context) ([]workload.Runner, bool, error) {
	var (
		out    []workload.Runner
		total  int64 = -1
		steady       = true
	)

	for page, count := int64(1), 0; page > 0; count++ {
		if count == maxPages {
			return nil, false, errEndless
		}

		found, resp, err := p.listPage(ctx, page)
		if err != nil {
			return nil, false, err
		}

		steady = steady && (total < 0 || total == resp.TotalItems)
		total = resp.TotalItems

		for i := range found {
			out = append(out, found[i].runner())
		}

		page = resp.NextPage
	}

	return out, steady, nil
}

// listedRunner is a runner as listings tell it. The library's own type leaves out whether
// the runner runs a job.
type listedRunner struct {
	ID          int64  `json:"id"`
	Description string `json:"description"`
	Paused      bool   `json:"paused"`
	Online      *bool  `json:"online"`
	Status      string `json:"status"`
	// Execution is active or idle; servers before 18 do not tell it.
	Execution string `json:"job_execution_status"`
}

// runner counts a paused one as offline, for it takes no job: it is one that was to be
// removed and was busy.
func (r *listedRunner) runner() workload.Runner {
	name, marks := readDescription(r.Description)

	return workload.Runner{
		ID: strconv.FormatInt(r.ID, 10), Name: name, Labels: marks,
		Online: r.Online != nil && *r.Online && !r.Paused, Busy: r.Execution == "active",
	}
}

// listPage asks for the runners of the scope itself, without those it shares with others.
func (p *provider) listPage(ctx context.Context, page int64) ([]listedRunner, *gl.Response, error) {
	path := "runners/all"

	switch p.where.kind {
	case projectScope:
		path = "projects/" + gl.PathEscape(p.where.name) + "/runners"
	case groupScope:
		path = "groups/" + gl.PathEscape(p.where.name) + "/runners"
	}

	opts := &gl.ListRunnersOptions{ListOptions: gl.ListOptions{Page: page, PerPage: perPage}, Type: &p.where.kind}

	req, err := p.client.NewRequest(http.MethodGet, path, opts, []gl.RequestOptionFunc{gl.WithContext(ctx)})
	if err != nil {
		return nil, nil, fmt.Errorf("list runners of %s: %w", p.where, p.redact.Cause(err))
	}

	var found []listedRunner

	resp, err := p.client.Do(req, &found)
	if err != nil {
		return nil, nil, p.explain("listing runners", needsRead, err)
	}

	return found, resp, nil
}
