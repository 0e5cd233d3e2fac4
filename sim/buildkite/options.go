// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"errors"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Options configure the simulated cluster. Only Tokens is required.
type Options struct {
	Clock clock.Clock  // default: the real clock
	Log   *slog.Logger // default: discards

	Organization string   // slug; default acme
	Queues       []string // keys, the default queue first; default: default
	Tokens       []string // agent tokens of the cluster
	// Repository is the URL that agents check out, at the head of its branch main. Default: a URL
	// at github.com with the names of the organization and the pipeline. This repository does not
	// exist. Its builds name a random commit.
	Repository string

	Webhook control.WebhookTarget
	// PlainToken sends the webhook's secret in X-Buildkite-Token instead of a signature.
	PlainToken bool

	Faults control.Faults
	Seed   uint64

	LostTimeout time.Duration // time without a call after which an agent's job fails; default 3 min
	HookTimeout time.Duration // timeout of a webhook delivery; default 10 s
	StackLimit  int           // maximum number of stacks of the organization; default 50
	NoLimits    bool          // no rate limits
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Organization == "" {
		o.Organization = "acme"
	}
	if len(o.Queues) == 0 {
		o.Queues = []string{"default"}
	}
	if o.LostTimeout <= 0 {
		o.LostTimeout = 3 * time.Minute
	}
	if o.HookTimeout <= 0 {
		o.HookTimeout = 10 * time.Second
	}
	if o.StackLimit <= 0 {
		o.StackLimit = 50
	}
}

func (o *Options) validate() error {
	if len(o.Tokens) == 0 {
		return errors.New("check simulator options: Tokens is empty; name at least one agent token")
	}
	return o.Faults.Check()
}
