// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package buildkite

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

// Headers of a webhook
// (https://buildkite.com/docs/apis/webhooks/pipelines#http-headers). A notification
// service sends the token or the signature, as its settings say.
const (
	HeaderEvent     = "X-Buildkite-Event"
	HeaderToken     = "X-Buildkite-Token" //nolint:gosec // the name of a header
	HeaderSignature = "X-Buildkite-Signature"
)

// signatureAge is how far a signature's time may be from now: it is when the webhook was
// sent, and older ones may be replayed.
const signatureAge = 5 * time.Minute

// Errors of a webhook that is not what Buildkite sends. They name the fix.
var (
	ErrNoSignature = errors.New("webhook has neither " + HeaderSignature + " nor " + HeaderToken +
		": give the notification service at Buildkite the token that the RunnerPool's workload.webhook.secret holds")
	ErrNoSecret = errors.New("webhook secret is empty: an empty secret would let anybody in")
	ErrStale    = errors.New("webhook signature is more than 5 minutes from now: it is a replay, or this machine's clock is wrong")
	ErrNoEvent  = errors.New("webhook has no " + HeaderEvent + " header: it was not sent by Buildkite")
	ErrPayload  = errors.New("webhook body is not a job event of Buildkite")
)

// Webhooks reads the webhooks of Buildkite. The zero value is ready.
type Webhooks struct {
	// Clock tells the time. Default: the real clock.
	Clock clock.PassiveClock
}

var _ workload.WebhookParser = Webhooks{}

// Scope reads whose webhook it claims to be, from the addresses of what it is about and,
// in a ping, from its organization. Nothing of it is to be trusted before Verify.
func (Webhooks) Scope(header http.Header, body []byte) (workload.Scope, error) {
	if header.Get(HeaderEvent) == "" {
		return workload.Scope{}, ErrNoEvent
	}

	var claimed payload
	if err := json.Unmarshal(body, &claimed); err != nil {
		return workload.Scope{}, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	organization, pipeline := claimed.scope()

	out := workload.Scope{Organization: organization}
	if organization != "" && pipeline != "" {
		out.Repository = organization + "/" + pipeline
	}

	return out, nil
}

// Verify checks the signature, or the token if there is none, in constant time. The error
// is workload.ErrSignature, ErrStale, ErrNoSignature or ErrNoSecret.
func (w Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(secret) == 0 {
		return ErrNoSecret
	}

	if _, signed := header[http.CanonicalHeaderKey(HeaderSignature)]; signed {
		return w.verifySignature(header.Get(HeaderSignature), body, secret)
	}

	token := header.Get(HeaderToken)
	if token == "" {
		return ErrNoSignature
	}

	// Of their sums, so that nothing tells how long the secret is.
	given, want := sha256.Sum256([]byte(token)), sha256.Sum256(secret)
	if subtle.ConstantTimeCompare(given[:], want[:]) != 1 {
		return workload.ErrSignature
	}

	return nil
}

// verifySignature reads timestamp=T,signature=HEX
// (https://buildkite.com/docs/apis/webhooks/pipelines#webhook-signature).
func (w Webhooks) verifySignature(given string, body, secret []byte) error {
	parts := map[string]string{}

	for part := range strings.SplitSeq(given, ",") {
		key, value, _ := strings.Cut(part, "=")
		parts[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}

	mac, err := hex.DecodeString(parts["signature"])
	if err != nil || !hmac.Equal(mac, Sign(parts["timestamp"], body, secret)) {
		return workload.ErrSignature
	}

	seconds, err := strconv.ParseInt(parts["timestamp"], 10, 64)
	if err != nil {
		return workload.ErrSignature
	}

	if off := w.now().Sub(time.Unix(seconds, 0)); off > signatureAge || off < -signatureAge {
		return ErrStale
	}

	return nil
}

func (w Webhooks) now() time.Time {
	if w.Clock == nil {
		return clock.RealClock{}.Now()
	}

	return w.Clock.Now()
}

// Sign gives the HMAC-SHA256 of "timestamp.body".
func Sign(timestamp string, body, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(timestamp + "."))
	mac.Write(body)

	return mac.Sum(nil)
}

// Parse reads the job of a job event. The job's state counts and not the event's name: an
// event may be sent late and tell of a later state. Events of builds and agents, pings,
// and jobs that no agent runs (block, wait and trigger steps) speak of no job. Texts
// longer than a RunnerJob's fields are cut; rules are never cut, for they decide who takes
// the job.
func (Webhooks) Parse(header http.Header, body []byte) (workload.Job, bool, error) {
	event := header.Get(HeaderEvent)

	switch {
	case event == "":
		return workload.Job{}, false, ErrNoEvent
	case !strings.HasPrefix(event, "job."):
		return workload.Job{}, false, nil
	}

	var said payload
	if err := json.Unmarshal(body, &said); err != nil {
		return workload.Job{}, false, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	if said.Job == nil || said.Job.Type == "" {
		return workload.Job{}, false, fmt.Errorf("%w: job.type is missing", ErrPayload)
	}

	if said.Job.Type != "script" {
		return workload.Job{}, false, nil
	}

	job, err := said.job()
	if err != nil {
		return workload.Job{}, false, err
	}

	return job, true, nil
}
