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

// Options describe the simulated GitHub. Only Repos is required.
type Options struct {
	Clock clock.Clock  // default: the real clock
	Log   *slog.Logger // default: discards
	Spec  *Spec        // default: loaded anew; share one to save time

	// RunnerKey signs for all runners; default: made when the first is registered.
	RunnerKey *rsa.PrivateKey

	// URL of an Enterprise Server, without a trailing slash, for links in answers and
	// webhooks; empty: github.com's. Calls are served at any address.
	URL string

	Repos      []Repo
	Enterprise string  // slug; it holds every organisation
	Groups     []Group // beside the Default group, id 1
	PATs       []PAT
	App        *App
	Hooks      []Hook // default: see Webhook
	// Webhook is where the default hook sends to: the App's hook if there is an
	// App, else one hook per owner (organisation) or repository (user).
	Webhook control.WebhookTarget

	Faults control.Faults
	Seed   uint64

	PickupTimeout time.Duration // an offered job returns to the queue; default 60 s
	OfflineAfter  time.Duration // silence until a runner shows as offline; default 60 s
	LostTimeout   time.Duration // silence until a running job fails; default 10 min
	QueueTimeout  time.Duration // waiting in the queue until a job fails; default 24 h
	PollTimeout   time.Duration // how long a runner's poll is held; default 50 s
	HookTimeout   time.Duration // a webhook receiver must answer within; default 10 s
	RateLimit     int           // API calls per hour and credential; default 5000
	Unlimited     bool          // no rate limits and no headers of them, as GitHub Enterprise Server by default
	// RegistrationLimit is how many runners of a scope are registered in 5 minutes;
	// default 1500.
	RegistrationLimit int
	// SecondaryPoints is how many points a credential has in a minute, where a read costs
	// 1 and a write 5. GitHub's number is 900. 0 means that they are not counted.
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
	Selected   []string // OWNER/NAME (or organisation logins) when selected
}

// PAT is a personal access token. Scopes make it a classic one; Permissions a
// fine-grained one ("administration": "write").
type PAT struct {
	Token       string
	Scopes      []string
	Permissions map[string]string
	Repos       []string // OWNER/NAME it may see; empty: all
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
	Repos       []string // OWNER/NAME when only some are selected
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
		o.Hooks = o.defaultHooks()
	}
}

func (o *Options) defaultHooks() []Hook {
	hook := Hook{URL: o.Webhook.URL, Secret: o.Webhook.Secret}
	if o.App != nil {
		hook.ID, hook.Owner = 409000001, "app"
		return []Hook{hook}
	}
	seen := map[string]bool{}
	var hooks []Hook
	for _, repo := range o.Repos {
		owner := repo.FullName
		if login, _, _ := strings.Cut(repo.FullName, "/"); !repo.UserOwned {
			owner = login
		}
		if seen[owner] {
			continue
		}
		seen[owner] = true
		hook.ID, hook.Owner = 409000001+int64(len(hooks)), owner
		hooks = append(hooks, hook)
	}
	return hooks
}

func (o *Options) check() error {
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
