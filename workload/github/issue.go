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
	// defaultGroup is the id of the group that every organization has, and the only group of a
	// repository.
	defaultGroup     = 1
	defaultGroupName = "default"
	maxGroupsAge     = 10 * time.Minute
	defaultWorkDir   = "_work"
	// maxRemnantsAge is the maximum age of the runner list in which left-over runners are searched.
	maxRemnantsAge = 30 * time.Second
)

var errNoCredential = errors.New("GitHub's response contains no credential")

// IssueCredential creates a JIT configuration or a registration token.
func (p *provider) IssueCredential(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	isJIT, err := isJITRegistration(req.Registration)
	if err != nil {
		return workload.Credential{}, err
	}

	if err := validateRequest(req); err != nil {
		return workload.Credential{}, err
	}

	if err := p.budget.allowRegistration("create runner " + req.Name); err != nil {
		return workload.Credential{}, err
	}

	if !isJIT {
		return p.issueToken(ctx, req)
	}

	group, err := p.resolveGroupID(ctx, req.Group)
	if err != nil {
		return workload.Credential{}, err
	}

	out, isNameTaken, err := p.createJITConfig(ctx, req, group)
	if err != nil || !isNameTaken {
		return out, err
	}

	// An earlier attempt may have left the runner of that name.
	if err := p.removeRemnant(ctx, req.Name); err != nil {
		return workload.Credential{}, err
	}

	out, isNameTaken, err = p.createJITConfig(ctx, req, group)
	if err == nil && isNameTaken {
		err = p.newConflictError(req.Name)
	}

	return out, err
}

func validateRequest(req workload.RunnerRequest) error {
	switch {
	case req.Name == "" || len(req.Name) > workload.MaxRunnerNameLength:
		return workload.NewRejected(ReasonRequest,
			fmt.Sprintf("runner name %q must have 1 to %d characters", req.Name, workload.MaxRunnerNameLength))
	case len(req.Labels) == 0 || len(req.Labels) > workload.MaxLabels:
		return workload.NewRejected(ReasonRequest, fmt.Sprintf(
			"runner %s has %d labels, but GitHub allows 1 to %d: change workload.config.github.labels",
			req.Name, len(req.Labels), workload.MaxLabels))
	default:
		return nil
	}
}

// createJITConfig creates the configuration of one runner, and reports whether another runner has
// the same name.
func (p *provider) createJITConfig(
	ctx context.Context, req workload.RunnerRequest, group int64,
) (credential workload.Credential, isNameTaken bool, err error) {
	body := &gh.GenerateJITConfigRequest{Name: req.Name, RunnerGroupID: group, Labels: req.Labels, WorkFolder: &req.WorkDir}
	if req.WorkDir == "" {
		body.WorkFolder = new(defaultWorkDir)
	}

	config := &gh.JITRunnerConfig{}
	call := request{
		class: classRunner, action: "create runner " + req.Name, method: http.MethodPost,
		path: p.urls.scope.path() + "/actions/runners/generate-jitconfig", body: body,
	}

	if _, err := p.send(ctx, call, config); err != nil {
		if status, ok := responseStatus(err); ok && status == http.StatusConflict {
			return workload.Credential{}, true, nil
		}

		return workload.Credential{}, false, p.explain(call.action, p.urls.scope.runnersRequirement(), err)
	}

	encoded := config.GetEncodedJITConfig()
	if encoded == "" {
		return workload.Credential{}, false, fmt.Errorf("create runner %s of %s: %w", req.Name, p.urls.scope, errNoCredential)
	}

	credential = workload.Credential{JITConfig: encoded}
	if id := config.GetRunner().GetID(); id > 0 {
		credential.RunnerID = convertRunner(config.GetRunner()).ID
	}

	return credential, false, nil
}

func (p *provider) issueToken(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	// With a token, GitHub checks the name only when the machine registers. Check the name now.
	switch found, err := p.FindRunner(ctx, req.Name, maxRemnantsAge); {
	case workload.Is(err, workload.RateLimited), workload.Is(err, workload.NotFound):
		// The name is free, or the check has to wait and the runner's registration fails if it is not.
	case err != nil:
		return workload.Credential{}, err
	default:
		if err := p.removeUnlessLive(ctx, found); err != nil {
			return workload.Credential{}, err
		}
	}

	token, err := p.createRegistrationToken(ctx)
	if err != nil {
		return workload.Credential{}, err
	}

	return workload.Credential{
		RunnerToken: token.GetToken(), RegistrationURL: p.urls.runner, ExpiresAt: token.GetExpiresAt().UTC(),
	}, nil
}

// createRegistrationToken creates a token at the configured URL. The token is valid for one hour
// and for any number of runners.
func (p *provider) createRegistrationToken(ctx context.Context) (*gh.RegistrationToken, error) {
	call := request{
		class: classRunner, action: "create a registration token", method: http.MethodPost, path: p.urls.registrationToken,
	}

	token := &gh.RegistrationToken{}
	if _, err := p.send(ctx, call, token); err != nil {
		return nil, p.explain(call.action, p.urls.scope.runnersRequirement(), err)
	}

	if token.GetToken() == "" {
		return nil, fmt.Errorf("create a registration token of %s: %w", p.urls.scope, errNoCredential)
	}

	return token, nil
}

// removeRemnant removes the runner of that name if an earlier attempt left it.
func (p *provider) removeRemnant(ctx context.Context, name string) error {
	found, ok, err := p.fetchRunnerByName(ctx, name)
	if err != nil || !ok {
		return err
	}

	return p.removeUnlessLive(ctx, found)
}

func (p *provider) removeUnlessLive(ctx context.Context, found workload.Runner) error {
	if found.Online || found.Busy {
		return p.newConflictError(found.Name)
	}

	err := p.Deregister(ctx, found.ID)
	if workload.Is(err, workload.RunnerBusy) {
		return p.newConflictError(found.Name)
	}

	return err
}

func (p *provider) newConflictError(name string) error {
	return &workload.Error{
		Kind: workload.Conflict, Reason: workload.ReasonRunnerExists,
		Message: fmt.Sprintf("%s already has a live runner %s: delete its machine or choose another name", p.urls.scope, name),
	}
}

// resolveGroupID returns the id of a runner group. Repositories have no groups. Ids are cached for
// maxGroupsAge. If the cache does not contain a name, resolveGroupID lists the groups at once.
func (p *provider) resolveGroupID(ctx context.Context, name string) (int64, error) {
	key := strings.ToLower(strings.TrimSpace(name))
	if key == "" || key == defaultGroupName {
		return defaultGroup, nil
	}

	if p.urls.scope.repo != "" {
		return 0, workload.NewRejected(ReasonGroup, fmt.Sprintf(
			"runner group %q cannot be used with %s: only organizations and enterprises have groups; "+
				"remove runnerGroup or set organization",
			name, p.urls.scope))
	}

	p.mu.Lock()
	id, ok := p.groups[key]
	isFresh := p.clock.Since(p.groupsAt) < maxGroupsAge
	p.mu.Unlock()

	if ok && isFresh {
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

	return 0, workload.NewRejected(ReasonGroup, fmt.Sprintf(
		"%s has no runner group %q: create the group at GitHub or change workload.config.github.runnerGroup", p.urls.scope, name))
}

func (p *provider) listGroups(ctx context.Context) (map[string]int64, error) {
	groups := map[string]int64{}

	for page, count := 1, 0; page > 0 && count < maxPages; count++ {
		found := &gh.RunnerGroups{}
		call := request{
			class: classRunner, action: "list runner groups", path: p.urls.scope.path() + "/actions/runner-groups", query: pageQuery(page),
		}

		resp, err := p.send(ctx, call, found)
		if err != nil {
			return nil, p.explain(call.action, p.urls.scope.runnersRequirement(), err)
		}

		if found.RunnerGroups == nil {
			return nil, p.explain(call.action, "", workload.ErrNoData)
		}

		for _, group := range found.RunnerGroups {
			groups[strings.ToLower(group.GetName())] = group.GetID()
		}

		page = resp.NextPage
	}

	return groups, nil
}
