// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package github

import (
	"crypto/rsa"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Options configure the simulated GitHub. Only Repos is required.
type Options struct {
	Clock clock.Clock  // default: the real clock
	Log   *slog.Logger // default: discards
	Spec  *Spec        // default: loaded by New; share a Spec to save time

	// RunnerKey is the signing key of all runners. Default: created when the first runner is
	// registered.
	RunnerKey *rsa.PrivateKey

	// URL is the URL of an Enterprise Server, without a trailing slash, for links in responses and
	// webhooks. If it is empty, the links have the URLs of github.com. The server accepts calls at
	// any address.
	URL string

	Repos      []Repo
	Enterprise string  // slug; the enterprise contains every organisation
	Groups     []Group // in addition to the group Default, id 1
	PATs       []PAT
	App        *App
	Hooks      []Hook // default: see Webhook
	// Webhook is the target of the default hooks: the App's hook if there is an App; otherwise one
	// hook per owner (organisation) or repository (of a user).
	Webhook control.WebhookTarget

	Faults control.Faults
	Seed   uint64

	PickupTimeout time.Duration // after this time an offered job returns to the queue; default 60 s
	OfflineAfter  time.Duration // time without a call after which a runner is offline; default 60 s
	LostTimeout   time.Duration // time without a call after which a runner's job fails; default 10 min
	QueueTimeout  time.Duration // after this time in the queue a job fails; default 24 h
	PollTimeout   time.Duration // maximum duration of a runner's poll; default 50 s
	HookTimeout   time.Duration // timeout of a webhook delivery; default 10 s
	RateLimit     int           // API calls per hour and credential; default 5000
	Unlimited     bool          // no rate limits and no rate limit headers, as GitHub Enterprise Server by default
	// RegistrationLimit is the maximum number of runners of a scope that are registered in 5
	// minutes; default 1500.
	RegistrationLimit int
	// SecondaryPoints is the maximum number of points of a credential per minute. A read costs 1
	// point and a write 5 points. GitHub's limit is 900. If it is 0, points are not counted.
	SecondaryPoints int

	ScaleSets ScaleSetOptions
}

// Repo is a repository.
type Repo struct {
	FullName  string // OWNER/NAME
	Private   bool
	UserOwned bool // the owner is a user, not an organisation
}

// Group is a runner group of an organisation or enterprise.
type Group struct {
	Owner      string // organisation login, or "enterprises/SLUG"
	Name       string
	Visibility string   // all, selected or private; default all
	Selected   []string // OWNER/NAME (or organisation logins) if Visibility is selected
}

// PAT is a personal access token. A classic token has Scopes. A fine-grained token has Permissions
// ("administration": "write").
type PAT struct {
	Token       string
	Scopes      []string
	Permissions map[string]string
	Repos       []string // OWNER/NAME that the token has access to; empty: all
}

// App is a GitHub App.
type App struct {
	ID            int64
	ClientID      string
	Slug          string
	PublicKey     *rsa.PublicKey
	Installations []Installation
}

// Installation is an App's installation on an account.
type Installation struct {
	ID          int64
	Account     string // login
	Permissions map[string]string
	Repos       []string // OWNER/NAME if the installation is limited to some repositories
}

// Hook is a webhook. Owner is "app", an organisation login, or OWNER/NAME.
type Hook struct {
	ID     int64
	Owner  string
	URL    string
	Secret string
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	for field, value := range map[*time.Duration]time.Duration{
		&o.PickupTimeout: time.Minute,
		&o.OfflineAfter:  time.Minute,
		&o.LostTimeout:   10 * time.Minute,
		&o.QueueTimeout:  24 * time.Hour,
		&o.PollTimeout:   50 * time.Second,
		&o.HookTimeout:   10 * time.Second,
	} {
		if *field <= 0 {
			*field = value
		}
	}
	if o.RateLimit <= 0 {
		o.RateLimit = 5000
	}
	o.ScaleSets.setDefaults()
	if o.RegistrationLimit <= 0 {
		o.RegistrationLimit = registrationLimit
	}
	if len(o.Hooks) == 0 {
		o.Hooks = o.newDefaultHooks()
	}
}

func (o *Options) newDefaultHooks() []Hook {
	hook := Hook{URL: o.Webhook.URL, Secret: o.Webhook.Secret}
	if o.App != nil {
		hook.ID, hook.Owner = 409000001, "app"
		return []Hook{hook}
	}
	hasHook := map[string]bool{}
	var hooks []Hook
	for _, repo := range o.Repos {
		owner := repo.FullName
		if login, _, _ := strings.Cut(repo.FullName, "/"); !repo.UserOwned {
			owner = login
		}
		if hasHook[owner] {
			continue
		}
		hasHook[owner] = true
		hook.ID, hook.Owner = 409000001+int64(len(hooks)), owner
		hooks = append(hooks, hook)
	}
	return hooks
}

func (o *Options) validate() error {
	if len(o.Repos) == 0 {
		return errors.New("check simulator options: Repos is empty; name at least one OWNER/NAME")
	}
	for _, repo := range o.Repos {
		owner, name, ok := strings.Cut(repo.FullName, "/")
		if !ok || owner == "" || name == "" || strings.Contains(name, "/") {
			return fmt.Errorf("check simulator options: repository %q is not OWNER/NAME", repo.FullName)
		}
	}
	if u, err := url.Parse(o.URL); err != nil || o.URL != "" && (u.Host == "" || strings.HasSuffix(o.URL, "/")) {
		return fmt.Errorf("check simulator options: URL %q is not scheme://host without a trailing slash", o.URL)
	}
	if o.App != nil && o.App.PublicKey == nil {
		return errors.New("check simulator options: App has no PublicKey")
	}
	return o.Faults.Check()
}
