// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Options describe the simulated cluster. Only Tokens is required.
type Options struct {
	Clock clock.Clock  // default: the real clock
	Log   *slog.Logger // default: discards

	Organization string   // slug; default acme
	Queues       []string // keys, the default queue first; default: default
	Tokens       []string // agent tokens of the cluster
	// Repository is what agents check out, at the head of its branch main; default: one at
	// github.com with the names of organization and pipeline, which is not there, at a
	// commit.
	Repository string

	Webhook control.WebhookTarget
	// PlainToken sends the webhook's secret in X-Buildkite-Token in place of a signature.
	PlainToken bool

	Faults control.Faults
	Seed   uint64

	LostTimeout time.Duration // silence until a job's agent counts as lost; default 3 min
	HookTimeout time.Duration // a webhook receiver must answer within; default 10 s
	StackLimit  int           // stacks that the organization may have; default 50
	NoLimits    bool          // no limits on the rate of requests
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

func (o *Options) check() error {
	if len(o.Tokens) == 0 {
		return errors.New("check simulator options: Tokens is empty; name at least one agent token")
	}
	return checkFaults(o.Faults)
}

func checkFaults(f control.Faults) error {
	for name, p := range map[string]float64{
		"webhookLost": f.WebhookLost, "webhookDuplicated": f.WebhookDuplicated,
		"webhookReordered": f.WebhookReordered, "serverError": f.ServerError,
		"secondaryRateLimit": f.SecondaryRateLimit, "rateLimit": f.RateLimit,
		"registrationRefused": f.RegistrationRefuse, "deleteBusy": f.DeleteBusy,
	} {
		if !(p >= 0 && p <= 1) { // also refuses NaN
			return fmt.Errorf("check faults: %s is %v, want a probability from 0 to 1", name, p)
		}
	}
	if f.RetryAfter < 0 || f.JITDelay < 0 {
		return errors.New("check faults: a delay is negative")
	}
	return nil
}
