// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/workload"
)

// maxRemnantsAge is the maximum age of the runner list in which left-over runners are searched.
const maxRemnantsAge = 30 * time.Second

var errNoCredential = errors.New("the response contains no credential")

// handlePattern matches valid handles of Forgejo's jobs. The runner gets the handle as an argument.
var handlePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$`)

// registeredRunner is a runner that was just created.
type registeredRunner struct {
	ID        jsonNumber `json:"id"`
	UUID      string     `json:"uuid"`
	Token     string     `json:"token"`
	Ephemeral bool       `json:"ephemeral"`
}

// jsonNumber is a number that the Connect protocol encodes as a string.
type jsonNumber int64

// UnmarshalJSON decodes a number and a string.
func (n *jsonNumber) UnmarshalJSON(text []byte) error {
	value, err := strconv.ParseInt(strings.Trim(string(text), `"`), 10, 64)
	*n = jsonNumber(value)

	return err
}

// IssueCredential creates a runner that runs one job, and returns the token with which the runner
// connects. Runner names are not unique at the servers, so IssueCredential first removes offline
// runners of the same name.
func (p *provider) IssueCredential(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	if err := p.validateRequest(req); err != nil {
		return workload.Credential{}, err
	}

	if err := p.removeRemnants(ctx, req.Name); err != nil {
		return workload.Credential{}, err
	}

	created, err := p.createRunner(ctx, req)
	if err != nil {
		// The failed call may have created the runner, so the next attempt must list the runners
		// again.
		p.runnerList.Invalidate()

		return workload.Credential{}, err
	}

	if created.UUID == "" || created.Token == "" || created.ID <= 0 {
		return workload.Credential{}, fmt.Errorf("create runner %s of %s: %w", req.Name, p.scope, errNoCredential)
	}

	// The guest reads the runner's UUID from JITConfig.
	out := workload.Credential{
		JITConfig: created.UUID, RunnerToken: created.Token, RegistrationURL: p.base,
		RunnerID: strconv.FormatInt(int64(created.ID), 10),
	}

	if p.kind == kindForgejo {
		out.JobID = req.Job.ID

		p.mu.Lock()
		p.jobsByRunner[out.RunnerID] = out.JobID
		p.mu.Unlock()
	}

	return out, nil
}

func (p *provider) validateRequest(req workload.RunnerRequest) error {
	reject := func(format string, args ...any) error {
		return workload.NewRejected(p.kind.newReason(reasonRequest), fmt.Sprintf(format, args...))
	}

	switch {
	case req.Name == "" || len(req.Name) > workload.MaxRunnerNameLength || strings.TrimSpace(req.Name) != req.Name:
		return reject("runner name %q must have 1 to %d characters and no surrounding spaces", req.Name, workload.MaxRunnerNameLength)
	case len(req.Labels) == 0:
		return reject("runner %s has no labels: set labels in workload.config.%s", req.Name, string(p.kind))
	case p.kind == kindForgejo && (req.Job == nil || !handlePattern.MatchString(req.Job.ID)):
		return reject("runner %s needs a job with a valid handle of Forgejo", req.Name)
	}

	for _, label := range req.Labels {
		if label == "" || strings.ContainsAny(label, " ,:\t\n") {
			return reject("label %q of runner %s is empty or contains a blank, a comma or a colon: change workload.config.%s.labels",
				label, req.Name, string(p.kind))
		}
	}

	return nil
}

// createRunner creates the runner with the call of the server's kind.
func (p *provider) createRunner(ctx context.Context, req workload.RunnerRequest) (registeredRunner, error) {
	action := "create runner " + req.Name

	if p.kind == kindForgejo {
		var out registeredRunner

		_, err := p.api.callAPI(ctx, http.MethodPost, p.scope.path()+"/actions/runners", map[string]any{
			"name": req.Name, "description": strings.TrimSpace("HyperFleet " + findOwnerLabel(req.Labels)), "ephemeral": true,
		}, &out)
		if err != nil {
			return out, p.explain(action, err)
		}

		return out, nil
	}

	// A stored registration token may have been replaced at the server. Retry once with a new
	// token.
	for attempt := 1; ; attempt++ {
		token, isStored, err := p.registrationToken(ctx)
		if err != nil {
			return registeredRunner{}, err
		}

		out, err := p.registerRunner(ctx, token, req)
		if err == nil {
			return out, nil
		}

		response, ok := errors.AsType[*responseError](err)
		isTokenRejected := ok && strings.Contains(response.message, "registration token")

		if attempt > 1 || !isStored || !isTokenRejected {
			return registeredRunner{}, p.explain(action, err)
		}

		p.discardToken(token)
	}
}

func findOwnerLabel(labels []string) string {
	i := slices.IndexFunc(labels, func(label string) bool { return strings.HasPrefix(label, ownerLabelPrefix) })
	if i < 0 {
		return ""
	}

	return labels[i]
}

// registrationToken returns Gitea's registration token of the scope, and whether it was stored by
// an earlier call. The token is valid until somebody replaces it.
func (p *provider) registrationToken(ctx context.Context) (token string, isStored bool, err error) {
	p.mu.Lock()
	token = p.storedToken
	p.mu.Unlock()

	if token != "" {
		return token, true, nil
	}

	var response struct {
		Token string `json:"token"`
	}

	path := p.scope.path() + "/actions/runners/registration-token"
	if _, err := p.api.callAPI(ctx, http.MethodPost, path, nil, &response); err != nil {
		return "", false, p.explain("request a registration token", err)
	}

	if response.Token == "" {
		return "", false, fmt.Errorf("request a registration token of %s: %w", p.scope, errNoCredential)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.storedToken = response.Token

	return response.Token, false, nil
}

// discardToken deletes the stored registration token, unless another one has replaced it.
func (p *provider) discardToken(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.storedToken == token {
		p.storedToken = ""
	}
}

// registerRunner registers the runner as its program would.
func (p *provider) registerRunner(ctx context.Context, token string, req workload.RunnerRequest) (registeredRunner, error) {
	var response struct {
		Runner registeredRunner `json:"runner"`
	}

	err := p.api.registerRunner(ctx, map[string]any{
		"name": req.Name, "token": token, "version": userAgent, "labels": req.Labels, "ephemeral": true,
	}, &response)
	if err != nil {
		return registeredRunner{}, err
	}

	if !response.Runner.Ephemeral {
		return registeredRunner{}, &responseError{
			status: http.StatusBadRequest, message: "the runner is not ephemeral, because the server is too old",
		}
	}

	return response.Runner, nil
}

// removeRemnants removes the runners of that name that an earlier attempt left.
func (p *provider) removeRemnants(ctx context.Context, name string) error {
	found, err := p.findRunners(ctx, name, maxRemnantsAge)
	if err != nil {
		return err
	}

	conflict := &workload.Error{
		Kind: workload.Conflict, Reason: workload.ReasonRunnerExists,
		Message: fmt.Sprintf("%s already has a live runner %s: delete its machine or choose another name", p.scope, name),
	}

	for _, runner := range found {
		if runner.Online || runner.Busy {
			return conflict
		}

		switch err := p.Deregister(ctx, runner.ID); {
		case workload.Is(err, workload.RunnerBusy):
			return conflict
		case err != nil:
			return err
		}
	}

	return nil
}
