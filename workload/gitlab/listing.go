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
	"sync"
	"time"

	gl "gitlab.com/gitlab-org/api/client-go"
	"golang.org/x/sync/singleflight"

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

// listing is the scope's runners as all callers share them.
type listing struct {
	flight singleflight.Group

	mu sync.Mutex
	// at is when the listing was begun: what it says is no newer.
	at      time.Time
	have    bool
	runners []workload.Runner
}

func (l *listing) get(oldest time.Time) ([]workload.Runner, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()

	return l.runners, l.have && !l.at.Before(oldest)
}

func (l *listing) put(at time.Time, runners []workload.Runner) {
	l.mu.Lock()
	defer l.mu.Unlock()

	if !l.have || !at.Before(l.at) {
		l.at, l.have, l.runners = at, true, runners
	}
}

// remove takes out a runner that is known to be gone. Callers hold the old slice: it is
// left as it is.
func (l *listing) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.runners = slices.DeleteFunc(slices.Clone(l.runners), func(runner workload.Runner) bool { return runner.ID == id })
}

// forget makes the next caller list anew.
func (l *listing) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()

	l.have = false
}

// listed gives the runners, at most maxAge old. Callers at the same time share one
// listing.
func (p *provider) listed(ctx context.Context, maxAge time.Duration) ([]workload.Runner, error) {
	oldest := p.clock.Now().Add(-max(maxAge, 0))

	// A listing that was under way when this call came may be too old; the next is not.
	for {
		if runners, fresh := p.list.get(oldest); fresh {
			return runners, nil
		}

		if err := p.limit.spare("listing runners"); err != nil {
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
		return fmt.Errorf("list runners of %s: %w", p.where, ctx.Err())
	}
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
