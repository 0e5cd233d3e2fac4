// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// Signature is how webhooks are signed.
type Signature string

// Ways to sign.
const (
	// SignStandard: webhook-id, webhook-timestamp and webhook-signature.
	SignStandard Signature = "standard"
	// SignHub: X-Hub-Signature-256.
	SignHub Signature = "hub"
)

// Options describe the sender. The zero value is ready.
type Options struct {
	Clock clock.WithTicker // default: the real clock
	Log   *slog.Logger     // default: discards

	// Sources of jobs; default: one, "demo".
	Sources []string
	// URL is where commands reach Handler; without it jobs have none.
	URL     string
	Webhook control.WebhookTarget
	Sign    Signature // default: SignStandard
	// Updates says that webhooks tell of jobs that run and are over as well. Without it
	// they tell of queued and cancelled ones alone.
	Updates bool

	Faults control.Faults
	Seed   uint64

	HookTimeout time.Duration // a webhook receiver must answer within; default 10 s
	RetryFirst  time.Duration // wait before a webhook is sent again, doubled each time; default 1 s
	RetryMost   time.Duration // longest such wait; default 1 min
	Attempts    int           // to deliver one webhook; default 50
}

func (o *Options) setDefaults() {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if len(o.Sources) == 0 {
		o.Sources = []string{"demo"}
	}
	if o.Sign == "" {
		o.Sign = SignStandard
	}
	if o.Attempts <= 0 {
		o.Attempts = 50
	}
	for field, value := range map[*time.Duration]time.Duration{
		&o.HookTimeout: 10 * time.Second, &o.RetryFirst: time.Second, &o.RetryMost: time.Minute,
	} {
		if *field <= 0 {
			*field = value
		}
	}
	o.URL = strings.TrimRight(o.URL, "/")
}

func (o *Options) check() error {
	if slices.Contains(o.Sources, "") {
		return errors.New("check simulator options: a source is empty")
	}
	if o.Sign != SignStandard && o.Sign != SignHub {
		return fmt.Errorf("check simulator options: signature %q is unknown: use %s or %s", o.Sign, SignStandard, SignHub)
	}
	if u, err := url.Parse(o.URL); err != nil || (o.URL != "" && u.Host == "") {
		return fmt.Errorf("check simulator options: URL %q is none", o.URL)
	}
	if _, err := signingKey(o.Webhook.Secret); err != nil {
		return err
	}
	return checkFaults(o.Faults)
}

// checkFaults refuses what this simulator would ignore.
func checkFaults(f control.Faults) error {
	if err := f.Check(); err != nil {
		return err
	}
	known := control.Faults{
		WebhookLost: f.WebhookLost, WebhookDuplicated: f.WebhookDuplicated,
		WebhookReordered: f.WebhookReordered, ServerError: f.ServerError,
	}
	if f != known {
		return errors.New("check faults: this sender has webhookLost, webhookDuplicated, webhookReordered and serverError alone")
	}
	return nil
}

const secretPrefix = "whsec_"

// signingKey is what a secret stands for in Standard Webhooks.
func signingKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok {
		return []byte(secret), nil
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, errors.New("read webhook secret: it begins with " + secretPrefix + ", but is not followed by base64")
	}
	return key, nil
}
