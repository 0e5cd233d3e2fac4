// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	gl "gitlab.com/gitlab-org/api/client-go"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// sweepAge is how old the listing behind Runners may be.
	sweepAge = 10 * time.Second
	// validateAge is how old the listing behind Validate may be.
	validateAge = time.Minute
	// placeAge is how long the id and the path of the scope are believed.
	placeAge = 10 * time.Minute
)

// provider is one scope of GitLab.
type provider struct {
	client  *gl.Client
	where   scope
	base    string
	timeout time.Duration
	clock   clock.Clock
	redact  log.Redactor
	limit   *limit
	list    workload.Shared[[]workload.Runner]

	mu sync.Mutex
	// place is the scope as GitLab knows it, as of placeAt.
	place   place
	placeAt time.Time
}

// place is a project or a group by its id and its full path.
type place struct {
	id   int64
	path string
}

var (
	_ workload.Provider = (*provider)(nil)
	_ workload.Poller   = (*provider)(nil)
)

// Validate asks what the access token may do, whether the project or the group exists,
// and for the runners, which shows that the token's owner may see them.
func (p *provider) Validate(ctx context.Context) error {
	if err := p.checkToken(ctx); err != nil {
		return err
	}

	if _, err := p.locate(ctx); err != nil {
		return err
	}

	_, err := p.listed(ctx, validateAge)

	return err
}

// checkToken looks at the token's scopes, which every token may tell
// (https://docs.gitlab.com/api/personal_access_tokens/). Tokens of another sort, such as
// OAuth ones, are not known there: the calls themselves show what those may do.
func (p *provider) checkToken(ctx context.Context) error {
	if err := p.limit.spare("checking the access token"); err != nil {
		return err
	}

	token, _, err := p.client.PersonalAccessTokens.GetSinglePersonalAccessToken(gl.WithContext(ctx))
	if err != nil {
		if status, _ := statusOf(err); status == http.StatusNotFound || status == http.StatusBadRequest {
			return nil
		}

		return p.explain("checking the access token", needsRead, err)
	}

	if token.Revoked || !token.Active {
		return workload.Reject(ReasonCredentials, "the access token is expired or revoked: put a valid one into the Secret")
	}

	if slices.Contains(token.Scopes, "api") {
		return nil
	}

	missing := slices.DeleteFunc([]string{"create_runner", "manage_runner", "read_api"}, func(scope string) bool {
		return slices.Contains(token.Scopes, scope)
	})
	if len(missing) > 0 {
		return workload.Reject(ReasonPermission, fmt.Sprintf(
			"the access token lacks the scopes %s: make one with create_runner, manage_runner and read_api, or with api",
			strings.Join(missing, ", ")))
	}

	return nil
}

// locate gives the scope's id, which making runners takes, and its path, which jobs bear.
func (p *provider) locate(ctx context.Context) (place, error) {
	if p.where.kind == instanceScope {
		return place{}, nil
	}

	now := p.clock.Now()

	p.mu.Lock()
	known, at := p.place, p.placeAt
	p.mu.Unlock()

	if !at.IsZero() && now.Sub(at) < placeAge {
		return known, nil
	}

	found, err := p.lookUp(ctx)
	if err != nil {
		return place{}, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.place, p.placeAt = found, now

	return found, nil
}

func (p *provider) lookUp(ctx context.Context) (place, error) {
	if p.where.kind == projectScope {
		project, _, err := p.client.Projects.GetProject(p.where.name, nil, gl.WithContext(ctx))
		if err != nil {
			return place{}, p.explain("looking for the project", needsRead, err)
		}

		return place{id: project.ID, path: project.PathWithNamespace}, nil
	}

	without := &gl.GetGroupOptions{WithProjects: new(false)}

	group, _, err := p.client.Groups.GetGroup(p.where.name, without, gl.WithContext(ctx))
	if err != nil {
		return place{}, p.explain("looking for the group", needsRead, err)
	}

	return place{id: group.ID, path: group.FullPath}, nil
}

// Find gives the runner of that name out of the shared listing. Of several, which only
// calls whose answer was lost can leave, it is one that lives, or the newest.
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
	all, err := p.listed(ctx, maxAge)
	if err != nil {
		return nil, err
	}

	return workload.Named(all, name), nil
}

// Runners gives the runners whose names begin with prefix, by name. Of their labels the
// operator's mark alone is known.
func (p *provider) Runners(ctx context.Context, prefix string) ([]workload.Runner, error) {
	all, err := p.listed(ctx, sweepAge)
	if err != nil {
		return nil, err
	}

	return workload.Prefixed(all, prefix), nil
}

// Deregister removes the runner. GitLab would remove a busy one as well and fail its job.
// So the runner is paused first: then it is given no job any more, and whether it has one
// is told for good. A busy one stays paused.
func (p *provider) Deregister(ctx context.Context, id string) error {
	number := workload.Number(id)
	if number <= 0 {
		return workload.Reject(ReasonRequest, fmt.Sprintf("runner id %q is not one of GitLab's: ids are numbers", id))
	}

	pause := &gl.UpdateRunnerDetailsOptions{Paused: new(true)}
	if _, _, err := p.client.Runners.UpdateRunnerDetails(number, pause, gl.WithContext(ctx)); err != nil {
		return p.gone(id, "pausing runner "+id, err)
	}

	running := &gl.ListRunnerJobsOptions{ListOptions: gl.ListOptions{PerPage: 1}, Status: new(statusRunning)}

	jobs, _, err := p.client.Runners.ListRunnerJobs(number, running, gl.WithContext(ctx))
	if err != nil {
		return p.gone(id, "asking for the jobs of runner "+id, err)
	}

	if len(jobs) > 0 {
		return &workload.Error{
			Kind: workload.RunnerBusy, Reason: workload.ReasonRunnerBusy,
			Message: fmt.Sprintf("runner %s of %s runs a job: it is removed when the job is over", id, p.where),
		}
	}

	if _, err := p.client.Runners.DeleteRegisteredRunnerByID(number, gl.WithContext(ctx)); err != nil {
		return p.gone(id, "removing runner "+id, err)
	}

	p.unlist(id)

	return nil
}

// gone is what came of a call about a runner: one that is not there is as it should be.
func (p *provider) gone(id, what string, err error) error {
	if status, _ := statusOf(err); status == http.StatusNotFound {
		p.unlist(id)

		return nil
	}

	return p.explain(what, needsManage, err)
}
