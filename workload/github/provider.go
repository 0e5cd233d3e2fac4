// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	gh "github.com/google/go-github/v88/github"
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
	// maxProofAge is how long a successful check of write access is valid.
	maxProofAge = time.Hour
)

// provider implements workload.Provider for one scope of GitHub.
type provider struct {
	// caller makes the scope's calls.
	caller

	// app makes the App's own calls. It has no client if a token is used.
	app caller
	// installationID is the App's installation. It is 0 if no App is used.
	installationID int64

	urls       urls
	group      string
	timeout    time.Duration
	clock      clock.Clock
	redactor   log.Redactor
	runnerList listcache.Cache[map[string]workload.Runner]
	polls      pollState
	// downloads are the downloads of the newest release of the runner.
	downloads listcache.Cache[[]*gh.RunnerApplicationDownload]

	redeliveryMu sync.Mutex
	// redeliverSince is the time since which deliveries still have to be checked.
	redeliverSince time.Time

	mu sync.Mutex
	// groups maps the names of runner groups in lower case to their ids, read at groupsAt.
	groups   map[string]int64
	groupsAt time.Time
	// writeProvenAt is when a call last proved the permission to register runners.
	writeProvenAt time.Time
}

var (
	_ workload.Provider    = (*provider)(nil)
	_ workload.Poller      = (*provider)(nil)
	_ workload.Redeliverer = (*provider)(nil)

	_ workload.ReleaseFinder = (*provider)(nil)
)

// Validate lists the runners, which proves that the credentials and the scope are valid, and checks
// that the runner group exists. Once an hour it also creates a registration token and discards it,
// because no other call proves the permission to register runners without creating one. While the
// rate limit allows no polls, Validate returns nil if it has succeeded before.
func (p *provider) Validate(ctx context.Context) error {
	p.mu.Lock()
	hasSucceeded := !p.writeProvenAt.IsZero()
	p.mu.Unlock()

	if limitErr := p.budget.allow(classPoll, http.MethodGet, "check the credentials"); hasSucceeded && limitErr != nil {
		return nil //nolint:nilerr // the last check succeeded
	}

	if _, err := p.cachedRunners(ctx, maxValidateAge); err != nil {
		return err
	}

	if err := p.proveWriteAccess(ctx); err != nil {
		return err
	}

	_, err := p.resolveGroupID(ctx, p.group)

	return err
}

func (p *provider) proveWriteAccess(ctx context.Context) error {
	now := p.clock.Now()

	p.mu.Lock()
	isProven := !p.writeProvenAt.IsZero() && now.Sub(p.writeProvenAt) < maxProofAge
	p.mu.Unlock()

	if isProven {
		return nil
	}

	if _, err := p.createRegistrationToken(ctx); err != nil {
		return err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.writeProvenAt = now

	return nil
}

// FindRunner returns the runner of that name from the shared runner list.
func (p *provider) FindRunner(ctx context.Context, name string, maxAge time.Duration) (workload.Runner, error) {
	runners, err := p.cachedRunners(ctx, maxAge)
	if err != nil {
		return workload.Runner{}, err
	}

	runner, ok := runners[name]
	if !ok {
		return workload.Runner{}, &workload.Error{
			Kind: workload.NotFound, Reason: workload.ReasonRunnerMissing,
			Message: fmt.Sprintf("%s has no runner %s", p.urls.scope, name),
		}
	}

	return runner, nil
}

// ListRunners returns the runners whose names begin with prefix, sorted by name.
func (p *provider) ListRunners(ctx context.Context, prefix string) ([]workload.Runner, error) {
	all, err := p.cachedRunners(ctx, maxRunnersAge)
	if err != nil {
		return nil, err
	}

	return workload.FilterByPrefix(slices.Collect(maps.Values(all)), prefix), nil
}

// Deregister removes the runner. GitHub rejects the removal of a busy runner with status 422.
// Deregister returns an error of kind RunnerBusy for every response with this status, so that the
// caller never deletes the machine of a busy runner.
func (p *provider) Deregister(ctx context.Context, id string) error {
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil || number <= 0 {
		return workload.NewRejected(ReasonRequest, fmt.Sprintf("runner id %q of GitHub is not a positive number", id))
	}

	call := request{
		class: classRemove, action: "remove runner " + id, method: http.MethodDelete,
		path: p.urls.scope.path() + "/actions/runners/" + strconv.FormatInt(number, 10),
	}
	if _, err = p.send(ctx, call, nil); err != nil {
		switch status, _ := responseStatus(err); status {
		case http.StatusNotFound:
			p.removeFromList(id)

			return nil
		case http.StatusUnprocessableEntity:
			return &workload.Error{
				Kind: workload.RunnerBusy, Reason: workload.ReasonRunnerBusy,
				Message: fmt.Sprintf("runner %s of %s runs a job: the operator removes it when the job is over", id, p.urls.scope),
			}
		}

		return p.explain(call.action, p.urls.scope.runnersRequirement(), err)
	}

	p.removeFromList(id)

	return nil
}

// responseStatus returns the status of an error response to the call itself. It returns false for an error response
// to the request for the App's token, which is an error of another type (*ghinstallation.HTTPError).
func responseStatus(err error) (int, bool) {
	response, ok := errors.AsType[*gh.ErrorResponse](err)
	if !ok || response.Response == nil {
		return 0, false
	}

	return response.Response.StatusCode, true
}

// GetJob returns the current state of a job. It needs the permission to read Actions.
func (p *provider) GetJob(ctx context.Context, repo, id string) (workload.Job, error) {
	owner, name, ok := strings.Cut(repo, "/")
	if number, err := strconv.ParseInt(id, 10, 64); !ok || !isValidName(owner) || !isValidName(name) || err != nil || number <= 0 {
		return workload.Job{}, workload.NewRejected(ReasonRequest, fmt.Sprintf("job %q of repository %q is not a valid job", id, repo))
	}

	response := payload{Repository: &repository{FullName: repo}}
	call := request{
		class: classGetJob, action: "get job " + id + " of " + repo, path: fmt.Sprintf("repos/%s/%s/actions/jobs/%s", owner, name, id),
	}

	if _, err := p.send(ctx, call, &response.Job); err != nil {
		if status, ok := responseStatus(err); ok && status == http.StatusNotFound {
			if p.canReadRuns(ctx, owner, name) {
				return workload.Job{}, workload.NewJobDeletedError(id, repo)
			}

			return workload.Job{}, &workload.Error{
				Kind: workload.NotFound, Reason: workload.ReasonJobMissing,
				Message: fmt.Sprintf("GitHub has no job %s in repository %s, or hides it from these credentials: grant %s",
					id, repo, jobsRequirement),
			}
		}

		return workload.Job{}, p.explain(call.action, jobsRequirement, err)
	}

	return response.toJob()
}

// canReadRuns reports whether the credentials can read the workflow runs of a repository. This needs the same
// permission as the jobs.
func (p *provider) canReadRuns(ctx context.Context, owner, name string) bool {
	call := request{
		class: classGetJob, action: "list the runs of " + owner + "/" + name, path: "repos/" + owner + "/" + name + "/actions/runs",
		query: url.Values{"per_page": {"1"}},
	}

	found := runList{}
	_, err := p.send(ctx, call, &found)

	return err == nil && found.isList()
}
