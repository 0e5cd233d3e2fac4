// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	gh "github.com/google/go-github/v88/github"
	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/kit/log"
	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// sweepAge is how old the listing behind Runners may be.
	sweepAge = 10 * time.Second
	// validateAge is how old the listing behind Validate may be.
	validateAge = time.Minute
	// proofAge is how long a proof of write access counts.
	proofAge = time.Hour
)

// provider is one scope of GitHub.
type provider struct {
	// caller makes the scope's calls.
	caller

	// app makes the App's own calls; it has no client where a token is used.
	app caller
	// installation of the App, if there is one.
	installation int64

	urls    urls
	group   string
	timeout time.Duration
	clock   clock.Clock
	redact  log.Redactor
	list    workload.Shared[map[string]workload.Runner]
	polls   polls

	redelivery sync.Mutex
	// undone is since when deliveries are still to be looked at.
	undone time.Time

	mu sync.Mutex
	// groups are the ids of runner groups by lower-case name, as of groupsAt.
	groups   map[string]int64
	groupsAt time.Time
	// proven is when the right to register runners was last shown.
	proven time.Time
}

var (
	_ workload.Provider    = (*provider)(nil)
	_ workload.Poller      = (*provider)(nil)
	_ workload.Redeliverer = (*provider)(nil)
)

// Validate lists the runners, which shows that credentials and scope are right; makes a
// registration token and throws it away, once an hour, for no other call shows the right
// to make runners without making one; and looks for the runner group. While GitHub's
// limits leave no room for it, what was shown before is believed.
func (p *provider) Validate(ctx context.Context) error {
	p.mu.Lock()
	shown := !p.proven.IsZero()
	p.mu.Unlock()

	if limited := p.budget.allow(spare, http.MethodGet, "checking the credentials"); shown && limited != nil {
		return nil //nolint:nilerr // what was shown before is believed
	}

	if _, err := p.listed(ctx, validateAge); err != nil {
		return err
	}

	if err := p.prove(ctx); err != nil {
		return err
	}

	_, err := p.groupID(ctx, p.group)

	return err
}

func (p *provider) prove(ctx context.Context) error {
	now := p.clock.Now()

	p.mu.Lock()
	proven := !p.proven.IsZero() && now.Sub(p.proven) < proofAge
	p.mu.Unlock()

	if proven {
		return nil
	}

	if _, err := p.registrationToken(ctx); err != nil {
		return err
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.proven = now

	return nil
}

// Find gives the runner of that name out of the shared listing.
func (p *provider) Find(ctx context.Context, name string, maxAge time.Duration) (workload.Runner, error) {
	runners, err := p.listed(ctx, maxAge)
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

// Runners gives the runners whose names begin with prefix, by name.
func (p *provider) Runners(ctx context.Context, prefix string) ([]workload.Runner, error) {
	all, err := p.listed(ctx, sweepAge)
	if err != nil {
		return nil, err
	}

	return workload.Prefixed(slices.Collect(maps.Values(all)), prefix), nil
}

// Deregister removes the runner. GitHub refuses to remove one that runs a job with
// status 422; whatever else that status may mean, the machine is then not to be destroyed.
func (p *provider) Deregister(ctx context.Context, id string) error {
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil || number <= 0 {
		return workload.Reject(ReasonRequest, fmt.Sprintf("runner id %q is not one of GitHub's: ids are numbers", id))
	}

	call := request{
		class: remove, what: "removing runner " + id, method: http.MethodDelete,
		path: p.urls.scope.path() + "/actions/runners/" + strconv.FormatInt(number, 10),
	}
	if _, err = p.send(ctx, call, nil); err != nil {
		switch got, _ := readStatus(err); got {
		case http.StatusNotFound:
			p.unlist(id)

			return nil
		case http.StatusUnprocessableEntity:
			return &workload.Error{
				Kind: workload.RunnerBusy, Reason: workload.ReasonRunnerBusy,
				Message: fmt.Sprintf("runner %s of %s runs a job: it is removed when the job is over", id, p.urls.scope),
			}
		}

		return p.explain(call.what, p.urls.scope.needs(), err)
	}

	p.unlist(id)

	return nil
}

// readStatus gives the status of an answer of the call itself, not of the App's token.
func readStatus(err error) (int, bool) {
	e, ok := errors.AsType[*gh.ErrorResponse](err)
	if !ok || e.Response == nil {
		return 0, false
	}

	return e.Response.StatusCode, true
}

// Job gives GitHub's present word on a job. It needs the permission to read Actions.
func (p *provider) Job(ctx context.Context, repo, id string) (workload.Job, error) {
	owner, name, ok := strings.Cut(repo, "/")
	if number, err := strconv.ParseInt(id, 10, 64); !ok || !plain(owner) || !plain(name) || err != nil || number <= 0 {
		return workload.Job{}, workload.Reject(ReasonRequest, fmt.Sprintf("job %q of repository %q is not one of GitHub's", id, repo))
	}

	said := payload{Repository: &repository{FullName: repo}}
	call := request{
		class: repair, what: "reading job " + id + " of " + repo, path: fmt.Sprintf("repos/%s/%s/actions/jobs/%s", owner, name, id),
	}

	if _, err := p.send(ctx, call, &said.Job); err != nil {
		if status, ok := readStatus(err); ok && status == http.StatusNotFound {
			return workload.Job{}, &workload.Error{
				Kind: workload.NotFound, Reason: workload.ReasonJobMissing,
				Message: fmt.Sprintf("GitHub knows no job %s in repository %s, or hides it from these credentials; reading it needs %s",
					id, repo, needsJobs),
			}
		}

		return workload.Job{}, p.explain(call.what, needsJobs, err)
	}

	return said.job()
}
