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

	"github.com/hyperfleet/hyperfleet/kit/listcache"
	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// maxRunnersAge is the maximum age of the runner list that ListRunners uses.
	maxRunnersAge = 10 * time.Second
	// maxValidateAge is the maximum age of the runner list that Validate uses.
	maxValidateAge = time.Minute
	// maxLocationAge is how long the id and the path of the scope are cached.
	maxLocationAge = 10 * time.Minute
)

// provider implements workload.Provider for one scope of GitLab.
type provider struct {
	client     *gl.Client
	scope      scope
	base       string
	timeout    time.Duration
	clock      clock.Clock
	redactor   log.Redactor
	limit      *rateLimit
	runnerList listcache.Cache[[]workload.Runner]

	mu sync.Mutex
	// location is the id and the path of the scope, read at locationAt.
	location   scopeLocation
	locationAt time.Time
}

// scopeLocation is the id and the full path of a project or a group.
type scopeLocation struct {
	id   int64
	path string
}

var (
	_ workload.Provider = (*provider)(nil)
	_ workload.Poller   = (*provider)(nil)
)

// Validate checks the access token's scopes and that the project or the group exists. It also lists
// the runners, which proves that the token's owner can read them.
func (p *provider) Validate(ctx context.Context) error {
	if err := p.checkToken(ctx); err != nil {
		return err
	}

	if _, err := p.locate(ctx); err != nil {
		return err
	}

	_, err := p.cachedRunners(ctx, maxValidateAge)

	return err
}

// checkToken checks the token's scopes, which every token can read
// (https://docs.gitlab.com/api/personal_access_tokens/). Other kinds of tokens, such as OAuth
// tokens, are unknown to this API and pass the check. Their permissions show in later calls.
func (p *provider) checkToken(ctx context.Context) error {
	if err := p.limit.checkAllowed("check the access token"); err != nil {
		return err
	}

	token, err := requireObject(p.client.PersonalAccessTokens.GetSinglePersonalAccessToken(gl.WithContext(ctx)))
	if err != nil {
		if status, _ := statusOf(err); status == http.StatusNotFound || status == http.StatusBadRequest {
			return nil
		}

		return p.explain("check the access token", readRequirement, err)
	}

	if token.Revoked || !token.Active {
		return workload.NewRejected(ReasonCredentials, "the access token is expired or revoked: put a valid token into the Secret "+
			"of bootstrap.config.gitlab.credentials")
	}

	if slices.Contains(token.Scopes, "api") {
		return nil
	}

	missing := slices.DeleteFunc([]string{"create_runner", "manage_runner", "read_api"}, func(scope string) bool {
		return slices.Contains(token.Scopes, scope)
	})
	if len(missing) > 0 {
		return workload.NewRejected(ReasonPermission, fmt.Sprintf(
			"the access token lacks the scopes %s: create a token with create_runner, manage_runner and read_api, or with api",
			strings.Join(missing, ", ")))
	}

	return nil
}

// locate returns the scope's id, which creating a runner needs, and its path, which jobs contain.
// It returns the zero scopeLocation for an instance.
func (p *provider) locate(ctx context.Context) (scopeLocation, error) {
	if p.scope.kind == instanceScope {
		return scopeLocation{}, nil
	}

	now := p.clock.Now()

	p.mu.Lock()
	cached, cachedAt := p.location, p.locationAt
	p.mu.Unlock()

	if !cachedAt.IsZero() && now.Sub(cachedAt) < maxLocationAge {
		return cached, nil
	}

	found, err := p.fetchLocation(ctx)
	if err != nil {
		return scopeLocation{}, err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.location, p.locationAt = found, now

	return found, nil
}

func (p *provider) fetchLocation(ctx context.Context) (scopeLocation, error) {
	if p.scope.kind == projectScope {
		project, err := requireObject(p.client.Projects.GetProject(p.scope.name, nil, gl.WithContext(ctx)))
		if err != nil {
			return scopeLocation{}, p.explain("get the project", readRequirement, err)
		}

		return scopeLocation{id: project.ID, path: project.PathWithNamespace}, nil
	}

	options := &gl.GetGroupOptions{WithProjects: new(false)}

	group, err := requireObject(p.client.Groups.GetGroup(p.scope.name, options, gl.WithContext(ctx)))
	if err != nil {
		return scopeLocation{}, p.explain("get the group", readRequirement, err)
	}

	return scopeLocation{id: group.ID, path: group.FullPath}, nil
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
	all, err := p.cachedRunners(ctx, maxAge)
	if err != nil {
		return nil, err
	}

	return workload.FilterByName(all, name), nil
}

// ListRunners returns the runners whose names begin with prefix, sorted by name. The runners'
// Labels contain only the operator's ownership label.
func (p *provider) ListRunners(ctx context.Context, prefix string) ([]workload.Runner, error) {
	all, err := p.cachedRunners(ctx, maxRunnersAge)
	if err != nil {
		return nil, err
	}

	return workload.FilterByPrefix(all, prefix), nil
}

// Deregister removes the runner. GitLab would also remove a busy runner and fail its job.
// Deregister therefore pauses the runner first, so that it gets no further job, and then checks
// whether it runs one. A busy runner stays paused.
func (p *provider) Deregister(ctx context.Context, id string) error {
	number := workload.ParseID(id)
	if number <= 0 {
		return workload.NewRejected(ReasonRequest, fmt.Sprintf("runner id %q of GitLab is not a positive number", id))
	}

	options := &gl.UpdateRunnerDetailsOptions{Paused: new(true)}
	if _, _, err := p.client.Runners.UpdateRunnerDetails(number, options, gl.WithContext(ctx)); err != nil {
		return p.ignoreMissing(id, "pause runner "+id, err)
	}

	running := &gl.ListRunnerJobsOptions{ListOptions: gl.ListOptions{PerPage: 1}, Status: new(statusRunning)}

	jobs, _, err := p.client.Runners.ListRunnerJobs(number, running, gl.WithContext(ctx))
	if err != nil {
		return p.ignoreMissing(id, "list the jobs of runner "+id, err)
	}

	if len(jobs) > 0 {
		return &workload.Error{
			Kind: workload.RunnerBusy, Reason: workload.ReasonRunnerBusy,
			Message: fmt.Sprintf("runner %s of %s runs a job: the operator removes it when the job is over", id, p.scope),
		}
	}

	if _, err := p.client.Runners.DeleteRegisteredRunnerByID(number, gl.WithContext(ctx)); err != nil {
		return p.ignoreMissing(id, "remove runner "+id, err)
	}

	p.removeFromList(id)

	return nil
}

// ignoreMissing explains the error of a call for a runner. If the runner does not exist, ignoreMissing
// removes it from the shared runner list and returns nil.
func (p *provider) ignoreMissing(id, action string, err error) error {
	if status, _ := statusOf(err); status == http.StatusNotFound {
		p.removeFromList(id)

		return nil
	}

	return p.explain(action, manageRequirement, err)
}
