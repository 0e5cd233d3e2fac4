// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Options configure the simulated GitLab. Only Projects is required.
type Options struct {
	Clock clock.Clock  // default: the real clock
	Log   *slog.Logger // default: discards

	Projects []Project
	Tokens   []Token
	// Webhook is the target of the hooks of all projects. A secret with the prefix whsec_ is a
	// signing token. Any other secret is sent as it is.
	Webhook control.WebhookTarget

	Faults control.Faults
	Seed   uint64

	OnlineTimeout       time.Duration // time without a call after which a runner is offline; default 2 h
	LostTimeout         time.Duration // time without a call after which a runner's job fails; default 1 h
	JobTimeout          time.Duration // time after which a running job fails; default 1 h
	PendingTimeout      time.Duration // time after which a pending job fails; default 24 h
	HookTimeout         time.Duration // timeout of a webhook delivery; default 10 s
	PollTimeout         time.Duration // maximum duration of a runner's repeated request for a job; default 50 s
	TokenLifetime       time.Duration // lifetime of the tokens of runners; default: unlimited
	HideExecutionStatus bool          // omit job_execution_status from lists of runners, as GitLab before version 18
}

// Project is a project by its full path. The simulator also creates the groups of the path.
type Project struct {
	Path string
	// NoPipelines disables CI/CD, so that the jobs of the project cannot be listed.
	NoPipelines bool
}

// Token is an access token.
type Token struct {
	Token  string
	Scopes []string // api, read_api, create_runner, manage_runner, read_user
	Admin  bool     // whether the user is an administrator
	// Roles are the roles (guest, reporter, developer, maintainer, owner) by full path of a project
	// or group. A role in a group also applies to everything in the group. A token without roles is
	// an owner everywhere.
	Roles   map[string]string
	Revoked bool
	// OAuth tokens are not personal access tokens, so the call for the own token fails.
	OAuth bool
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for field, value := range map[*time.Duration]time.Duration{
		&o.OnlineTimeout:  2 * time.Hour,
		&o.LostTimeout:    time.Hour,
		&o.JobTimeout:     time.Hour,
		&o.PendingTimeout: 24 * time.Hour,
		&o.HookTimeout:    10 * time.Second,
		&o.PollTimeout:    50 * time.Second,
	} {
		if *field <= 0 {
			*field = value
		}
	}
}

func (o *Options) validate() error {
	if len(o.Projects) == 0 {
		return errors.New("check simulator options: Projects is empty; name at least one GROUP/PROJECT")
	}
	for _, project := range o.Projects {
		if namespace, name := splitPath(project.Path); namespace == "" || name == "" || strings.Contains(project.Path, "//") {
			return fmt.Errorf("check simulator options: project %q is not GROUP/PROJECT", project.Path)
		}
	}
	for _, token := range o.Tokens {
		if token.Token == "" {
			return errors.New("check simulator options: a token is empty")
		}
		for path, role := range token.Roles {
			if roleLevel(role) == 0 {
				return fmt.Errorf("check simulator options: role %q for %s is unknown", role, path)
			}
		}
	}
	return o.Faults.Check()
}

// splitPath splits a full path into its namespace and its name.
func splitPath(path string) (namespace, name string) {
	index := strings.LastIndex(path, "/")
	if index < 0 {
		return "", path
	}
	return path[:index], path[index+1:]
}
