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

// Signature is the kind of the signature of webhooks.
type Signature string

// Kinds of signatures.
const (
	// SignStandard sets webhook-id, webhook-timestamp and webhook-signature.
	SignStandard Signature = "standard"
	// SignHub sets X-Hub-Signature-256.
	SignHub Signature = "hub"
)

// Options configure the sender. The zero value is ready to use.
type Options struct {
	Clock clock.WithTicker // default: the real clock
	Log   *slog.Logger     // default: discards

	// Sources are the sources of jobs; default: one source, "demo".
	Sources []string
	// URL is the URL at which commands reach Handler. If it is empty, jobs have no URL.
	URL       string
	Webhook   control.WebhookTarget
	Signature Signature // default: SignStandard
	// Updates also sends webhooks for running and completed jobs. By default, only queued and
	// cancelled jobs have webhooks.
	Updates bool

	Faults control.Faults
	Seed   uint64

	HookTimeout   time.Duration // timeout of a webhook delivery; default 10 s
	RetryDelay    time.Duration // delay before the first retry of a webhook, doubled for each retry; default 1 s
	MaxRetryDelay time.Duration // maximum of this delay; default 1 min
	Attempts      int           // maximum number of attempts to deliver one webhook; default 50
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
	if o.Signature == "" {
		o.Signature = SignStandard
	}
	if o.Attempts <= 0 {
		o.Attempts = 50
	}
	for field, value := range map[*time.Duration]time.Duration{
		&o.HookTimeout: 10 * time.Second, &o.RetryDelay: time.Second, &o.MaxRetryDelay: time.Minute,
	} {
		if *field <= 0 {
			*field = value
		}
	}
	o.URL = strings.TrimRight(o.URL, "/")
}

func (o *Options) validate() error {
	if slices.Contains(o.Sources, "") {
		return errors.New("check simulator options: a source is empty")
	}
	if o.Signature != SignStandard && o.Signature != SignHub {
		return fmt.Errorf("check simulator options: signature %q is unknown: use %s or %s", o.Signature, SignStandard, SignHub)
	}
	if u, err := url.Parse(o.URL); err != nil || (o.URL != "" && u.Host == "") {
		return fmt.Errorf("check simulator options: URL %q is not scheme://host", o.URL)
	}
	if _, err := parseSigningKey(o.Webhook.Secret); err != nil {
		return err
	}
	return checkFaults(o.Faults)
}

// checkFaults returns an error for faults that this simulator does not have.
func checkFaults(f control.Faults) error {
	if err := f.Check(); err != nil {
		return err
	}
	supported := control.Faults{
		WebhookLost: f.WebhookLost, WebhookDuplicated: f.WebhookDuplicated,
		WebhookReordered: f.WebhookReordered, ServerError: f.ServerError,
	}
	if f != supported {
		return errors.New("check faults: this sender has only webhookLost, webhookDuplicated, webhookReordered and serverError")
	}
	return nil
}

const secretPrefix = "whsec_"

// parseSigningKey returns the signing key for a secret as Standard Webhooks defines it.
func parseSigningKey(secret string) ([]byte, error) {
	text, ok := strings.CutPrefix(secret, secretPrefix)
	if !ok {
		return []byte(secret), nil
	}
	key, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return nil, errors.New("parse webhook secret: after the prefix " + secretPrefix + " it must be base64")
	}
	return key, nil
}
