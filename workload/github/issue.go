// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	gh "github.com/google/go-github/v88/github"

	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// defaultGroup is the id of the group that every organisation has, and the only one
	// of a repository.
	defaultGroup     = 1
	defaultGroupName = "default"
	groupsAge        = 10 * time.Minute
	defaultWorkDir   = "_work"
	// remnantAge is how old the listing may be in which remnants are looked for.
	remnantAge = 30 * time.Second
)

var errNoCredential = errors.New("GitHub's answer holds no credential")

// Issue makes a JIT configuration or a registration token.
func (p *provider) Issue(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	jit, err := registrationKind(req.Registration)
	if err != nil {
		return workload.Credential{}, err
	}

	if err := checkRequest(req); err != nil {
		return workload.Credential{}, err
	}

	if err := p.budget.register("making runner " + req.Name); err != nil {
		return workload.Credential{}, err
	}

	if !jit {
		return p.issueToken(ctx, req)
	}

	group, err := p.groupID(ctx, req.Group)
	if err != nil {
		return workload.Credential{}, err
	}

	out, taken, err := p.jitConfig(ctx, req, group)
	if err != nil || !taken {
		return out, err
	}

	if err := p.removeRemnant(ctx, req.Name); err != nil {
		return workload.Credential{}, err
	}

	out, taken, err = p.jitConfig(ctx, req, group)
	if err == nil && taken {
		err = p.conflict(req.Name)
	}

	return out, err
}

func checkRequest(req workload.RunnerRequest) error {
	switch {
	case req.Name == "" || len(req.Name) > workload.MaxRunnerName:
		return workload.Reject(ReasonRequest,
			fmt.Sprintf("runner name %q is not of 1 to %d characters", req.Name, workload.MaxRunnerName))
	case len(req.Labels) == 0 || len(req.Labels) > workload.MaxLabels:
		return workload.Reject(ReasonRequest, fmt.Sprintf(
			"runner %s has %d labels: GitHub takes 1 to %d; change workload.config.github.labels",
			req.Name, len(req.Labels), workload.MaxLabels))
	default:
		return nil
	}
}

// jitConfig makes the configuration of one runner, and tells whether its name is taken.
func (p *provider) jitConfig(
	ctx context.Context, req workload.RunnerRequest, group int64,
) (workload.Credential, bool, error) {
	body := &gh.GenerateJITConfigRequest{Name: req.Name, RunnerGroupID: group, Labels: req.Labels, WorkFolder: &req.WorkDir}
	if req.WorkDir == "" {
		body.WorkFolder = new(defaultWorkDir)
	}

	made := &gh.JITRunnerConfig{}
	call := request{
		class: work, what: "making runner " + req.Name, method: http.MethodPost,
		path: p.urls.scope.path() + "/actions/runners/generate-jitconfig", body: body,
	}

	if _, err := p.send(ctx, call, made); err != nil {
		if status, ok := readStatus(err); ok && status == http.StatusConflict {
			return workload.Credential{}, true, nil
		}

		return workload.Credential{}, false, p.explain(call.what, p.urls.scope.needs(), err)
	}

	blob := made.GetEncodedJITConfig()
	if blob == "" {
		return workload.Credential{}, false, fmt.Errorf("make runner %s of %s: %w", req.Name, p.urls.scope, errNoCredential)
	}

	out := workload.Credential{JITConfig: blob}
	if id := made.GetRunner().GetID(); id > 0 {
		out.RunnerID = runnerOf(made.GetRunner()).ID
	}

	return out, false, nil
}

func (p *provider) issueToken(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	// With a token the name is taken only when the machine registers: look now.
	switch found, err := p.Find(ctx, req.Name, remnantAge); {
	case workload.Is(err, workload.RateLimited), workload.Is(err, workload.NotFound):
	case err != nil:
		return workload.Credential{}, err
	default:
		if err := p.removeUnlessLive(ctx, found); err != nil {
			return workload.Credential{}, err
		}
	}

	token, err := p.registrationToken(ctx)
	if err != nil {
		return workload.Credential{}, err
	}

	return workload.Credential{
		RunnerToken: token.GetToken(), RegistrationURL: p.urls.runner, ExpiresAt: token.GetExpiresAt().UTC(),
	}, nil
}

// registrationToken makes a token at the configured URL. It is good for an hour, and
// for any number of runners.
func (p *provider) registrationToken(ctx context.Context) (*gh.RegistrationToken, error) {
	call := request{class: work, what: "making a registration token", method: http.MethodPost, path: p.urls.registrationToken}

	token := &gh.RegistrationToken{}
	if _, err := p.send(ctx, call, token); err != nil {
		return nil, p.explain(call.what, p.urls.scope.needs(), err)
	}

	if token.GetToken() == "" {
		return nil, fmt.Errorf("make a registration token of %s: %w", p.urls.scope, errNoCredential)
	}

	return token, nil
}

// removeRemnant removes the runner of that name if it is what an earlier try left.
func (p *provider) removeRemnant(ctx context.Context, name string) error {
	found, ok, err := p.byName(ctx, name)
	if err != nil || !ok {
		return err
	}

	return p.removeUnlessLive(ctx, found)
}

func (p *provider) removeUnlessLive(ctx context.Context, found workload.Runner) error {
	if found.Online || found.Busy {
		return p.conflict(found.Name)
	}

	err := p.Deregister(ctx, found.ID)
	if workload.Is(err, workload.RunnerBusy) {
		return p.conflict(found.Name)
	}

	return err
}

func (p *provider) conflict(name string) error {
	return &workload.Error{
		Kind: workload.Conflict, Reason: workload.ReasonRunnerExists,
		Message: fmt.Sprintf("%s already has a live runner %s: end its machine or choose another name", p.urls.scope, name),
	}
}

// groupID gives the id of a runner group. Repositories have no groups. Ids are kept for
// a while; a name that is not among them is looked for at once.
func (p *provider) groupID(ctx context.Context, name string) (int64, error) {
	key := strings.ToLower(strings.TrimSpace(name))
	if key == "" || key == defaultGroupName {
		return defaultGroup, nil
	}

	if p.urls.scope.repo != "" {
		return 0, workload.Reject(ReasonGroup, fmt.Sprintf(
			"runner group %q cannot be used with %s: only organizations have groups, and enterprises; "+
				"remove runnerGroup or use organization",
			name, p.urls.scope))
	}

	p.mu.Lock()
	id, ok := p.groups[key]
	fresh := p.clock.Since(p.groupsAt) < groupsAge
	p.mu.Unlock()

	if ok && fresh {
		return id, nil
	}

	found, err := p.listGroups(ctx)
	if err != nil {
		return 0, err
	}

	p.mu.Lock()
	p.groups, p.groupsAt = found, p.clock.Now()
	p.mu.Unlock()

	if id, ok := found[key]; ok {
		return id, nil
	}

	return 0, workload.Reject(ReasonGroup, fmt.Sprintf(
		"%s has no runner group %q: make it at GitHub or change runnerGroup", p.urls.scope, name))
}

func (p *provider) listGroups(ctx context.Context) (map[string]int64, error) {
	groups := map[string]int64{}

	for page, count := 1, 0; page > 0 && count < maxPages; count++ {
		found := &gh.RunnerGroups{}
		call := request{
			class: work, what: "listing runner groups", path: p.urls.scope.path() + "/actions/runner-groups", query: paged(page),
		}

		resp, err := p.send(ctx, call, found)
		if err != nil {
			return nil, p.explain(call.what, p.urls.scope.needs(), err)
		}

		for _, group := range found.RunnerGroups {
			groups[strings.ToLower(group.GetName())] = group.GetID()
		}

		page = resp.NextPage
	}

	return groups, nil
}
