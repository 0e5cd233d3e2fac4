// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	gl "gitlab.com/gitlab-org/api/client-go"

	"github.com/hyperfleet/hyperfleet/workload"
)

const (
	// maxTags is GitLab's limit of tags per runner.
	maxTags = 50
	// maxNoteLength is GitLab's limit for a maintenance note.
	maxNoteLength = 1024
	// maxRemnantsAge is the maximum age of the runner list in which left-over runners are searched.
	maxRemnantsAge = 30 * time.Second
)

var errNoCredential = errors.New("GitLab's response contains no credential")

// IssueCredential creates a runner
// (https://docs.gitlab.com/api/users/#create-a-runner-linked-to-a-user) and returns its
// authentication token. Runner names are not unique at GitLab, so IssueCredential first removes
// offline runners of the same name.
func (p *provider) IssueCredential(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	if err := validateRequest(req); err != nil {
		return workload.Credential{}, err
	}

	if err := p.removeRemnants(ctx, req.Name); err != nil {
		return workload.Credential{}, err
	}

	location, err := p.locate(ctx)
	if err != nil {
		return workload.Credential{}, err
	}

	created, err := requireObject(p.client.Users.CreateUserRunner(p.buildOptions(req, location), gl.WithContext(ctx)))
	if err != nil {
		// The failed call may have created the runner, so the next attempt must list the runners
		// again.
		p.runnerList.Invalidate()

		return workload.Credential{}, p.explain("create runner "+req.Name, createRequirement, err)
	}

	if created.Token == "" || created.ID <= 0 {
		return workload.Credential{}, fmt.Errorf("create runner %s of %s: %w", req.Name, p.scope, errNoCredential)
	}

	out := workload.Credential{
		RunnerToken: created.Token, RegistrationURL: p.base, RunnerID: strconv.FormatInt(created.ID, 10),
	}
	if created.TokenExpiresAt != nil {
		out.ExpiresAt = created.TokenExpiresAt.UTC()
	}

	return out, nil
}

// validateRequest returns an error for a runner that GitLab would reject or that would get no jobs.
func validateRequest(req workload.RunnerRequest) error {
	if !isValidRunnerName(req.Name) {
		return workload.NewRejected(ReasonRequest,
			fmt.Sprintf("runner name %q must have 1 to %d characters and must not end with an operator's ownership label",
				req.Name, workload.MaxRunnerNameLength))
	}

	if len(req.Labels) > maxTags {
		return workload.NewRejected(ReasonRequest,
			fmt.Sprintf("runner %s has %d tags, but GitLab allows at most %d: change workload.config.gitlab.tags",
				req.Name, len(req.Labels), maxTags))
	}

	if len(req.Labels) == 0 && !req.CanRunUntagged {
		return workload.NewRejected(ReasonRequest, fmt.Sprintf(
			"runner %s has no tags and does not run untagged jobs: set tags or runUntagged in workload.config.gitlab", req.Name))
	}

	for _, tag := range req.Labels {
		if strings.TrimSpace(tag) != tag || tag == "" || strings.Contains(tag, ",") {
			return workload.NewRejected(ReasonRequest, fmt.Sprintf(
				"tag %q of runner %s is empty or contains a comma or outer blanks: list each tag separately in workload.config.gitlab.tags",
				tag, req.Name))
		}
	}

	return nil
}

func (p *provider) buildOptions(req workload.RunnerRequest, location scopeLocation) *gl.CreateUserRunnerOptions {
	out := &gl.CreateUserRunnerOptions{
		RunnerType: &p.scope.kind, Description: new(formatDescription(req.Name, req.Labels)),
		RunUntagged: &req.CanRunUntagged, Paused: new(false),
	}

	if len(req.Labels) > 0 {
		out.TagList = &req.Labels
	}

	if note := workload.Truncate(strings.TrimSpace(req.Description), maxNoteLength); note != "" {
		out.MaintenanceNote = &note
	}

	switch p.scope.kind {
	case projectScope:
		// Lock the runner, so that nobody can assign a machine of this project to another project.
		out.ProjectID, out.Locked = &location.id, new(true)
	case groupScope:
		out.GroupID = &location.id
	}

	return out
}

// removeRemnants removes the runners of this name that an earlier attempt has created. It returns a
// conflict error if one of them is online or runs a job.
func (p *provider) removeRemnants(ctx context.Context, name string) error {
	found, err := p.findRunners(ctx, name, maxRemnantsAge)
	if err != nil {
		return err
	}

	for _, runner := range found {
		if runner.Online || runner.Busy {
			return p.newConflictError(name)
		}

		switch err := p.Deregister(ctx, runner.ID); {
		case workload.Is(err, workload.RunnerBusy):
			return p.newConflictError(name)
		case err != nil:
			return err
		}
	}

	return nil
}

func (p *provider) newConflictError(name string) error {
	return &workload.Error{
		Kind: workload.Conflict, Reason: workload.ReasonRunnerExists,
		Message: fmt.Sprintf("%s already has a live runner %s: delete its machine or choose another name", p.scope, name),
	}
}
