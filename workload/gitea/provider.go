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

	"github.com/hyperfleet/hyperfleet/kit/listcache"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// maxRunnersAge is the maximum age of the runner list that ListRunners uses.
	maxRunnersAge = 10 * time.Second
	// maxValidateAge is the maximum age of the runner list that Validate uses.
	maxValidateAge = time.Minute
)

// provider implements workload.Provider for one scope of a server.
type provider struct {
	api        *client
	kind       kind
	scope      scope
	base       string
	clock      clock.Clock
	runnerList listcache.Cache[[]workload.Runner]

	mu sync.Mutex
	// storedToken is Gitea's registration token of the scope. It is empty if none was requested yet.
	storedToken string
	// names maps repository ids, which Forgejo's jobs contain, to names. It has at most maxNames
	// entries.
	names map[int64]string
	// jobsByRunner maps the ids of Forgejo's runners to the jobs that they were created for.
	jobsByRunner map[string]string
	// lastJobs are the jobs of the last poll, by id.
	lastJobs map[string]workload.Job
	// tasks are the tasks of Forgejo's jobs by the job's handle. They are stored until
	// taskRetention after the job was last listed.
	tasks map[string]task
}

var (
	_ workload.Provider = (*provider)(nil)
	_ workload.Poller   = (*provider)(nil)
)

// Validate reads the server's version and lists the runners, which proves that the scope exists and
// that the token can read the runners.
func (p *provider) Validate(ctx context.Context) error {
	var response struct {
		Version string `json:"version"`
	}

	if _, err := p.api.callAPI(ctx, http.MethodGet, "/version", nil, &response); err != nil {
		return p.explain("get the server's version", err)
	}

	if err := p.kind.checkVersion(response.Version); err != nil {
		return err
	}

	_, err := p.runnerList.Get(ctx, maxValidateAge)

	return err
}

// FindRunner returns the runner of that name from the shared runner list. Several runners can have
// the same name only if the response of a call was lost. FindRunner then returns a busy or online
// runner, or else the newest one.
func (p *provider) FindRunner(ctx context.Context, name string, maxAge time.Duration) (workload.Runner, error) {
	all, err := p.findRunners(ctx, name, maxAge)
	if err != nil {
		return workload.Runner{}, err
	}

	if len(all) == 0 {
		return workload.Runner{}, &workload.Error{
			Kind: workload.NotFound, Reason: workload.ReasonRunnerMissing,
			Message: fmt.Sprintf("%s has no runner %s", p.scope, name),
		}
	}

	return all[0], nil
}

// findRunners returns all runners of that name, most relevant first.
func (p *provider) findRunners(ctx context.Context, name string, maxAge time.Duration) ([]workload.Runner, error) {
	all, err := p.runnerList.Get(ctx, maxAge)
	if err != nil {
		return nil, err
	}

	return workload.FilterByName(all, name), nil
}

// ListRunners returns the runners whose names begin with prefix, sorted by name.
func (p *provider) ListRunners(ctx context.Context, prefix string) ([]workload.Runner, error) {
	all, err := p.runnerList.Get(ctx, maxRunnersAge)
	if err != nil {
		return nil, err
	}

	return workload.FilterByPrefix(all, prefix), nil
}

// Deregister removes the runner. The servers would also remove a busy runner, and its job would
// fail. Deregister therefore disables a runner of Gitea first, so that it gets no job. A runner of
// Forgejo cannot be disabled. Deregister then checks whether the runner is busy or, according to
// the job list, runs a job.
func (p *provider) Deregister(ctx context.Context, id string) error {
	if workload.ParseID(id) <= 0 {
		return workload.NewRejected(p.kind.newReason(reasonRequest),
			fmt.Sprintf("runner id %q of %s is not a positive number", id, p.kind))
	}

	path := p.scope.path() + "/actions/runners/" + id

	if p.kind == kindGitea {
		if _, err := p.api.callAPI(ctx, http.MethodPatch, path, map[string]bool{"disabled": true}, nil); err != nil {
			return p.ignoreMissing(id, "disable runner "+id, err)
		}
	}

	var listed listedRunner
	if _, err := p.api.callAPI(ctx, http.MethodGet, path, nil, &listed); err != nil {
		return p.ignoreMissing(id, "get runner "+id, err)
	}

	isBusy := listed.toRunner().Busy

	if !isBusy {
		var err error
		if isBusy, err = p.isRunnerBusy(ctx, id); err != nil {
			return err
		}
	}

	if isBusy {
		return &workload.Error{
			Kind: workload.RunnerBusy, Reason: workload.ReasonRunnerBusy,
			Message: fmt.Sprintf("runner %s of %s runs a job: the server removes it when the job is over", id, p.scope),
		}
	}

	if _, err := p.api.callAPI(ctx, http.MethodDelete, path, nil, nil); err != nil {
		return p.ignoreMissing(id, "remove runner "+id, err)
	}

	p.removeFromList(id)

	return nil
}

// ignoreMissing explains the error of a call for a runner. If the runner does not exist, ignoreMissing
// removes it from the shared runner list and returns nil.
func (p *provider) ignoreMissing(id, action string, err error) error {
	if statusOf(err) == http.StatusNotFound {
		p.removeFromList(id)

		return nil
	}

	return p.explain(action, err)
}

// removeFromList removes a deleted runner from the shared runner list.
func (p *provider) removeFromList(id string) {
	p.runnerList.Update(func(runners []workload.Runner) []workload.Runner {
		return slices.DeleteFunc(slices.Clone(runners), func(runner workload.Runner) bool { return runner.ID == id })
	})

	p.mu.Lock()
	defer p.mu.Unlock()

	delete(p.jobsByRunner, id)
}
