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

// Options describe the simulated GitLab. Only Projects is required.
type Options struct {
	Clock clock.Clock  // default: the real clock
	Log   *slog.Logger // default: discards

	Projects []Project
	Tokens   []Token
	// Webhook is where the hooks of all projects send to. A secret that begins with whsec_
	// is a signing token; any other is sent as it is.
	Webhook control.WebhookTarget

	Faults control.Faults
	Seed   uint64

	OnlineFor     time.Duration // silence until a runner shows as offline; default 2 h
	LostTimeout   time.Duration // silence until a running job fails; default 1 h
	JobTimeout    time.Duration // a job that runs for longer fails; default 1 h
	PendingFor    time.Duration // waiting in the queue until a job fails; default 24 h
	HookTimeout   time.Duration // a webhook receiver must answer within; default 10 s
	PollTimeout   time.Duration // how long a runner's repeated question for a job is held; default 50 s
	TokenLife     time.Duration // of runners' tokens; default: for ever
	HideExecution bool          // listings don't tell job_execution_status, as before GitLab 18
}

// Project is a project by its full path. Its groups are made with it.
type Project struct {
	Path string
	// NoPipelines: CI/CD is switched off, and its jobs may not be listed.
	NoPipelines bool
}

// Token is an access token.
type Token struct {
	Token  string
	Scopes []string // api, read_api, create_runner, manage_runner, read_user
	Admin  bool     // of an administrator
	// Roles by full path of a project or group: guest, reporter, developer, maintainer,
	// owner. They hold for what is below, too. Without any the token is an owner's
	// everywhere.
	Roles   map[string]string
	Revoked bool
	// OAuth tokens are not known as personal access tokens.
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
		&o.OnlineFor:   2 * time.Hour,
		&o.LostTimeout: time.Hour,
		&o.JobTimeout:  time.Hour,
		&o.PendingFor:  24 * time.Hour,
		&o.HookTimeout: 10 * time.Second,
		&o.PollTimeout: 50 * time.Second,
	} {
		if *field <= 0 {
			*field = value
		}
	}
}

func (o *Options) check() error {
	if len(o.Projects) == 0 {
		return errors.New("check simulator options: Projects is empty; name at least one GROUP/PROJECT")
	}
	for _, project := range o.Projects {
		if namespace, name := split(project.Path); namespace == "" || name == "" || strings.Contains(project.Path, "//") {
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

// split takes a full path apart: its namespace and its name.
func split(path string) (namespace, name string) {
	at := strings.LastIndex(path, "/")
	if at < 0 {
		return "", path
	}
	return path[:at], path[at+1:]
}
