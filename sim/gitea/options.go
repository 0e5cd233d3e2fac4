// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitea

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Options configure the simulated server. Only Repositories is required.
type Options struct {
	Clock clock.Clock  // default: the real clock
	Log   *slog.Logger // default: discards

	// Forgejo makes the server a Forgejo. By default, it is a Gitea.
	Forgejo bool
	// Version is the version that the server reports. Default: a version that has all calls.
	Version string
	// Repositories are the paths owner/name of the repositories. Every owner is an organisation.
	Repositories []string
	Tokens       []Token
	// Webhook is the target of Gitea's hooks. Forgejo has no webhooks for jobs.
	Webhook control.WebhookTarget

	Faults control.Faults
	Seed   uint64

	OnlineTimeout time.Duration // time without a call after which a runner is offline; default 1 min
	LostTimeout   time.Duration // time without a call after which a runner's job fails; default 10 min
	HookTimeout   time.Duration // timeout of a webhook delivery; default 5 s
}

// Token is an access token.
type Token struct {
	Token  string
	Scopes []string // such as write:repository, which includes read:repository
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Version == "" {
		o.Version = "1.27.3"
		if o.Forgejo {
			o.Version = "15.0.2+gitea-1.22.0"
		}
	}
	for field, value := range map[*time.Duration]time.Duration{
		&o.OnlineTimeout: time.Minute, &o.LostTimeout: 10 * time.Minute, &o.HookTimeout: 5 * time.Second,
	} {
		if *field <= 0 {
			*field = value
		}
	}
}

func (o *Options) validate() error {
	if len(o.Repositories) == 0 {
		return errors.New("check simulator options: Repositories is empty; name at least one OWNER/NAME")
	}
	for _, path := range o.Repositories {
		if owner, name, ok := strings.Cut(path, "/"); !ok || owner == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("check simulator options: repository %q is not OWNER/NAME", path)
		}
	}
	for _, token := range o.Tokens {
		if token.Token == "" {
			return errors.New("check simulator options: a token is empty")
		}
	}
	return o.Faults.Check()
}
