// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// sweepAge is how old the listing behind Runners may be.
	sweepAge = 10 * time.Second
	// validateAge is how old the listing behind Validate may be.
	validateAge = time.Minute
)

// provider is one scope of a server.
type provider struct {
	api   *client
	kind  kind
	where scope
	base  string
	clock clock.Clock
	list  workload.Shared[[]workload.Runner]

	mu sync.Mutex
	// registration is Gitea's registration token of the scope.
	registration string
	// names of repositories by their ids, which Forgejo's jobs bear; maxNames at most.
	names map[int64]string
	// bound are the jobs that Forgejo's runners were made for, by the runner's id.
	bound map[string]string
	// seen are the jobs of the last poll, by id.
	seen map[string]workload.Job
	// tasks are those of Forgejo's jobs, by handle: those that it lists, and for taskLasts after.
	tasks map[string]task
}

var (
	_ workload.Provider = (*provider)(nil)
	_ workload.Poller   = (*provider)(nil)
)

// Validate asks for the server's version and for the runners, which shows that the scope
// exists and that the token may see them.
func (p *provider) Validate(ctx context.Context) error {
	var said struct {
		Version string `json:"version"`
	}

	if _, err := p.api.api(ctx, http.MethodGet, "/version", nil, &said); err != nil {
		return p.explain("asking for the version", err)
	}

	if err := p.kind.checkVersion(said.Version); err != nil {
		return err
	}

	_, err := p.list.Get(ctx, validateAge)

	return err
}

// Find gives the runner of that name out of the shared listing. Of several, which only calls
// whose answer was lost can leave, it is one that lives, or the newest.
func (p *provider) Find(ctx context.Context, name string, maxAge time.Duration) (workload.Runner, error) {
	all, err := p.named(ctx, name, maxAge)
	if err != nil {
		return workload.Runner{}, err
	}

	if len(all) == 0 {
		return workload.Runner{}, &workload.Error{
			Kind: workload.NotFound, Reason: workload.ReasonRunnerMissing,
			Message: fmt.Sprintf("%s has no runner %s", p.where, name),
		}
	}

	return all[0], nil
}

// named gives all runners of that name, the one that matters first.
func (p *provider) named(ctx context.Context, name string, maxAge time.Duration) ([]workload.Runner, error) {
	all, err := p.list.Get(ctx, maxAge)
	if err != nil {
		return nil, err
	}

	return workload.Named(all, name), nil
}

// Runners gives the runners whose names begin with prefix, by name.
func (p *provider) Runners(ctx context.Context, prefix string) ([]workload.Runner, error) {
	all, err := p.list.Get(ctx, sweepAge)
	if err != nil {
		return nil, err
	}

	return workload.Prefixed(all, prefix), nil
}

// Deregister removes the runner. The servers would remove a busy one as well, and its job
// would fail. So Gitea's is disabled first: then it is given no job any more. A runner of
// Forgejo can't be; it is looked whether it, or the job that it is for, is being run.
func (p *provider) Deregister(ctx context.Context, id string) error {
	if workload.Number(id) <= 0 {
		return workload.Reject(p.kind.reason(reasonRequest), fmt.Sprintf("runner id %q is not one of %s: ids are numbers", id, p.kind))
	}

	path := p.where.path() + "/actions/runners/" + id

	if p.kind == kindGitea {
		if _, err := p.api.api(ctx, http.MethodPatch, path, map[string]bool{"disabled": true}, nil); err != nil {
			return p.gone(id, "disabling runner "+id, err)
		}
	}

	var said listedRunner
	if _, err := p.api.api(ctx, http.MethodGet, path, nil, &said); err != nil {
		return p.gone(id, "looking at runner "+id, err)
	}

	busy := said.runner().Busy

	if !busy {
		var err error
		if busy, err = p.runs(ctx, id); err != nil {
			return err
		}
	}

	if busy {
		return &workload.Error{
			Kind: workload.RunnerBusy, Reason: workload.ReasonRunnerBusy,
			Message: fmt.Sprintf("runner %s of %s runs a job: it is gone when the job is over", id, p.where),
		}
	}

	if _, err := p.api.api(ctx, http.MethodDelete, path, nil, nil); err != nil {
		return p.gone(id, "removing runner "+id, err)
	}

	p.unlist(id)

	return nil
}

// gone is what came of a call about a runner: one that is not there is as it should be.
func (p *provider) gone(id, what string, err error) error {
	if statusOf(err) == http.StatusNotFound {
		p.unlist(id)

		return nil
	}

	return p.explain(what, err)
}

// unlist takes out a runner that is known to be gone.
func (p *provider) unlist(id string) {
	p.list.Change(func(old []workload.Runner) []workload.Runner {
		return slices.DeleteFunc(slices.Clone(old), func(runner workload.Runner) bool { return runner.ID == id })
	})

	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.bound, id)
}
