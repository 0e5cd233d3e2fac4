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

// remnantAge is how old the listing may be in which remnants are looked for.
const remnantAge = 30 * time.Second

var errNoCredential = errors.New("the answer holds no credential")

// handlePattern is what may be the handle of a job of Forgejo, which its runner is given as
// an argument.
var handlePattern = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$`)

// registered is a runner that was just made.
type registered struct {
	ID        number `json:"id"`
	UUID      string `json:"uuid"`
	Token     string `json:"token"`
	Ephemeral bool   `json:"ephemeral"`
}

// number is one, which the Connect protocol writes as a text.
type number int64

// UnmarshalJSON reads either form.
func (n *number) UnmarshalJSON(text []byte) error {
	value, err := strconv.ParseInt(strings.Trim(string(text), `"`), 10, 64)
	*n = number(value)

	return err
}

// Issue makes a runner that is good for one job, and gives the token that its program
// connects with. Names are not unique to the servers, so runners of that name are looked for
// first.
func (p *provider) Issue(ctx context.Context, req workload.RunnerRequest) (workload.Credential, error) {
	if err := p.checkRequest(req); err != nil {
		return workload.Credential{}, err
	}

	if err := p.removeRemnants(ctx, req.Name); err != nil {
		return workload.Credential{}, err
	}

	made, err := p.make(ctx, req)
	if err != nil {
		// It may have been made all the same: whoever tries again has to see it.
		p.list.Forget()

		return workload.Credential{}, err
	}

	if made.UUID == "" || made.Token == "" || made.ID <= 0 {
		return workload.Credential{}, fmt.Errorf("make runner %s of %s: %w", req.Name, p.where, errNoCredential)
	}

	out := workload.Credential{
		JITConfig: made.UUID, RunnerToken: made.Token, RegistrationURL: p.base, RunnerID: strconv.FormatInt(int64(made.ID), 10),
	}

	if p.kind == kindForgejo {
		out.JobID = req.Job.ID

		p.mu.Lock()
		p.bound[out.RunnerID] = out.JobID
		p.mu.Unlock()
	}

	return out, nil
}

func (p *provider) checkRequest(req workload.RunnerRequest) error {
	refuse := func(format string, args ...any) error {
		return workload.Reject(p.kind.reason(reasonRequest), fmt.Sprintf(format, args...))
	}

	switch {
	case req.Name == "" || len(req.Name) > workload.MaxRunnerName || strings.TrimSpace(req.Name) != req.Name:
		return refuse("runner name %q is not of 1 to %d characters", req.Name, workload.MaxRunnerName)
	case len(req.Labels) == 0:
		return refuse("runner %s has no labels: set labels in workload.config.%s", req.Name, string(p.kind))
	case p.kind == kindForgejo && (req.Job == nil || !handlePattern.MatchString(req.Job.ID)):
		return refuse("runner %s is for no job of Forgejo: a job is known by its handle", req.Name)
	}

	for _, label := range req.Labels {
		if label == "" || strings.ContainsAny(label, " ,:\t\n") {
			return refuse("label %q of runner %s is empty, or holds a blank, a comma or a colon: change workload.config.%s.labels",
				label, req.Name, string(p.kind))
		}
	}

	return nil
}

// make makes the runner in the way of the server.
func (p *provider) make(ctx context.Context, req workload.RunnerRequest) (registered, error) {
	what := "making runner " + req.Name

	if p.kind == kindForgejo {
		var out registered

		_, err := p.api.api(ctx, http.MethodPost, p.where.path()+"/actions/runners", map[string]any{
			"name": req.Name, "description": strings.TrimSpace("HyperFleet " + mark(req.Labels)), "ephemeral": true,
		}, &out)
		if err != nil {
			return out, p.explain(what, err)
		}

		return out, nil
	}

	// A token that was kept may have been replaced since.
	for _, again := range []bool{true, false} {
		token, kept, err := p.registrationToken(ctx)
		if err != nil {
			return registered{}, err
		}

		out, err := p.register(ctx, token, req)
		if err == nil {
			return out, nil
		}

		refused, ok := errors.AsType[*answer](err)
		if !again || !kept || !ok || !strings.Contains(refused.said, "registration token") {
			return registered{}, p.explain(what, err)
		}

		p.forgetToken(token)
	}

	return registered{}, fmt.Errorf("make runner %s of %s: %w", req.Name, p.where, errNoCredential)
}

func mark(labels []string) string {
	at := slices.IndexFunc(labels, func(label string) bool { return strings.HasPrefix(label, markPrefix) })
	if at < 0 {
		return ""
	}

	return labels[at]
}

// registrationToken gives Gitea's registration token of the scope, and whether it was kept
// from an earlier call. It stays good until somebody replaces it.
func (p *provider) registrationToken(ctx context.Context) (string, bool, error) {
	p.mu.Lock()
	token := p.registration
	p.mu.Unlock()

	if token != "" {
		return token, true, nil
	}

	var said struct {
		Token string `json:"token"`
	}

	if _, err := p.api.api(ctx, http.MethodPost, p.where.path()+"/actions/runners/registration-token", nil, &said); err != nil {
		return "", false, p.explain("asking for a registration token", err)
	}

	if said.Token == "" {
		return "", false, fmt.Errorf("ask for a registration token of %s: %w", p.where, errNoCredential)
	}

	p.mu.Lock()
	defer p.mu.Unlock()

	p.registration = said.Token

	return said.Token, false, nil
}

func (p *provider) forgetToken(token string) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if p.registration == token {
		p.registration = ""
	}
}

// register registers the runner as its program would.
func (p *provider) register(ctx context.Context, token string, req workload.RunnerRequest) (registered, error) {
	var said struct {
		Runner registered `json:"runner"`
	}

	err := p.api.register(ctx, map[string]any{
		"name": req.Name, "token": token, "version": userAgent, "labels": req.Labels, "ephemeral": true,
	}, &said)
	if err != nil {
		return registered{}, err
	}

	if !said.Runner.Ephemeral {
		return registered{}, &answer{status: http.StatusBadRequest, said: "the runner is not ephemeral: the server is too old"}
	}

	return said.Runner, nil
}

// removeRemnants removes the runners of that name that an earlier try left.
func (p *provider) removeRemnants(ctx context.Context, name string) error {
	found, err := p.named(ctx, name, remnantAge)
	if err != nil {
		return err
	}

	conflict := &workload.Error{
		Kind: workload.Conflict, Reason: workload.ReasonRunnerExists,
		Message: fmt.Sprintf("%s already has a live runner %s: end its machine or choose another name", p.where, name),
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
