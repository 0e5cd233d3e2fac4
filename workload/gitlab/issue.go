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
	// maxTags of a runner, as GitLab has it.
	maxTags = 50
	// maxNote is how long a maintenance note may be.
	maxNote = 1024
	// remnantAge is how old the listing may be in which remnants are looked for.
	remnantAge = 30 * time.Second
)

var errNoCredential = errors.New("GitLab's answer holds no credential")

// Issue makes a runner (https://docs.gitlab.com/api/users/#create-a-runner-linked-to-a-user)
// and gives its authentication token. Names are not unique to GitLab, so runners of that
// name are looked for first.
func (p *provider) Issue(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	if err := checkRequest(req); err != nil {
		return workload.Credential{}, err
	}

	if err := p.removeRemnants(ctx, req.Name); err != nil {
		return workload.Credential{}, err
	}

	where, err := p.locate(ctx)
	if err != nil {
		return workload.Credential{}, err
	}

	made, _, err := p.client.Users.CreateUserRunner(p.wanted(req, where), gl.WithContext(ctx))
	if err != nil {
		// It may have been made all the same: whoever tries again has to see it.
		p.list.Forget()

		return workload.Credential{}, p.explain("making runner "+req.Name, needsCreate, err)
	}

	if made.Token == "" || made.ID <= 0 {
		return workload.Credential{}, fmt.Errorf("make runner %s of %s: %w", req.Name, p.where, errNoCredential)
	}

	out := workload.Credential{
		RunnerToken: made.Token, RegistrationURL: p.base, RunnerID: strconv.FormatInt(made.ID, 10),
	}
	if made.TokenExpiresAt != nil {
		out.ExpiresAt = made.TokenExpiresAt.UTC()
	}

	return out, nil
}

func checkRequest(req workload.RunnerRequest) error {
	if !fits(req.Name) {
		return workload.Reject(ReasonRequest,
			fmt.Sprintf("runner name %q is not of 1 to %d characters, or ends like an operator's mark",
				req.Name, workload.MaxRunnerName))
	}

	if len(req.Labels) > maxTags {
		return workload.Reject(ReasonRequest,
			fmt.Sprintf("runner %s has %d tags: GitLab takes at most %d; change workload.config.gitlab.tags",
				req.Name, len(req.Labels), maxTags))
	}

	if len(req.Labels) == 0 && !req.Untagged {
		return workload.Reject(ReasonRequest, fmt.Sprintf(
			"runner %s has no tags and takes no untagged jobs: set tags or runUntagged in workload.config.gitlab", req.Name))
	}

	for _, tag := range req.Labels {
		if strings.TrimSpace(tag) != tag || tag == "" || strings.Contains(tag, ",") {
			return workload.Reject(ReasonRequest, fmt.Sprintf(
				"tag %q of runner %s holds a comma or is empty: write each tag as an item of its own in workload.config.gitlab.tags",
				tag, req.Name))
		}
	}

	return nil
}

func (p *provider) wanted(req workload.RunnerRequest, where place) *gl.CreateUserRunnerOptions {
	out := &gl.CreateUserRunnerOptions{
		RunnerType: &p.where.kind, Description: new(describe(req.Name, req.Labels)),
		RunUntagged: &req.Untagged, Paused: new(false),
	}

	if len(req.Labels) > 0 {
		out.TagList = &req.Labels
	}

	if note := workload.Cut(strings.TrimSpace(req.Description), maxNote); note != "" {
		out.MaintenanceNote = &note
	}

	switch p.where.kind {
	case projectScope:
		// Locked: nobody gives a machine made for this project to another.
		out.ProjectID, out.Locked = &where.id, new(true)
	case groupScope:
		out.GroupID = &where.id
	}

	return out
}

// removeRemnants removes the runners of that name that an earlier try left.
func (p *provider) removeRemnants(ctx context.Context, name string) error {
	found, err := p.named(ctx, name, remnantAge)
	if err != nil {
		return err
	}

	for _, runner := range found {
		if runner.Online || runner.Busy {
			return p.conflict(name)
		}

		switch err := p.Deregister(ctx, runner.ID); {
		case workload.Is(err, workload.RunnerBusy):
			return p.conflict(name)
		case err != nil:
			return err
		}
	}

	return nil
}

func (p *provider) conflict(name string) error {
	return &workload.Error{
		Kind: workload.Conflict, Reason: workload.ReasonRunnerExists,
		Message: fmt.Sprintf("%s already has a live runner %s: end its machine or choose another name", p.where, name),
	}
}
