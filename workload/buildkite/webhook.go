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

// Headers of a webhook (https://buildkite.com/docs/apis/webhooks/pipelines#http-headers). A
// notification service sends either the token or the signature, as its settings determine.
const (
	HeaderEvent     = "X-Buildkite-Event"
	HeaderToken     = "X-Buildkite-Token" //nolint:gosec // the name of a header
	HeaderSignature = "X-Buildkite-Signature"
)

// maxSignatureSkew is the maximum difference between a signature's time and the current time. An
// older webhook can be a replay.
const maxSignatureSkew = 5 * time.Minute

// Errors of webhooks that Buildkite did not send or that cannot be verified. They name the fix.
var (
	ErrNoSignature = errors.New("webhook has neither " + HeaderSignature + " nor " + HeaderToken +
		": give the notification service at Buildkite the token that the RunnerPool's workload.webhook.secret holds")
	ErrNoSecret = errors.New("webhook secret is empty: set the RunnerPool's workload.webhook.secret, or anyone could sign webhooks")
	ErrStale    = errors.New("webhook signature is off by more than 5 minutes: it is a replay, or this machine's clock is wrong")
	ErrNoEvent  = errors.New("webhook has no " + HeaderEvent + " header: Buildkite did not send it")
	ErrPayload  = errors.New("webhook body is not a job event of Buildkite")
)

// Webhooks verifies and parses the webhooks of Buildkite. The zero value is ready to use.
type Webhooks struct {
	// Clock is used to check the age of signatures. It defaults to the real clock.
	Clock clock.PassiveClock
}

var _ workload.WebhookParser = Webhooks{}

// ParseScope returns the scope that the webhook claims to come from. It reads the URLs in the event
// and, in a ping, the organization. The result is untrusted until Verify succeeds.
func (Webhooks) ParseScope(header http.Header, body []byte) (workload.Scope, error) {
	if header.Get(HeaderEvent) == "" {
		return workload.Scope{}, ErrNoEvent
	}

	var claimed payload
	if err := json.Unmarshal(body, &claimed); err != nil {
		return workload.Scope{}, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	organization, pipeline := claimed.parseScope()

	out := workload.Scope{Organization: organization}
	if organization != "" && pipeline != "" {
		out.Repository = organization + "/" + pipeline
	}

	return out, nil
}

// Verify checks the signature or, if there is none, the token, in constant time. The error is
// workload.ErrSignature, ErrStale, ErrNoSignature or ErrNoSecret.
func (w Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(secret) == 0 {
		return ErrNoSecret
	}

	if _, isSigned := header[http.CanonicalHeaderKey(HeaderSignature)]; isSigned {
		return w.verifySignature(header.Get(HeaderSignature), body, secret)
	}

	token := header.Get(HeaderToken)
	if token == "" {
		return ErrNoSignature
	}

	// Compare digests, so that the time does not depend on the secret's length.
	tokenDigest, secretDigest := sha256.Sum256([]byte(token)), sha256.Sum256(secret)
	if subtle.ConstantTimeCompare(tokenDigest[:], secretDigest[:]) != 1 {
		return workload.ErrSignature
	}

	return nil
}

// verifySignature verifies timestamp=T,signature=HEX
// (https://buildkite.com/docs/apis/webhooks/pipelines#webhook-signature).
func (w Webhooks) verifySignature(signature string, body, secret []byte) error {
	parts := map[string]string{}

	for part := range strings.SplitSeq(signature, ",") {
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

	if skew := w.now().Sub(time.Unix(seconds, 0)); skew > maxSignatureSkew || skew < -maxSignatureSkew {
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

// Sign returns the HMAC-SHA256 of "timestamp.body".
func Sign(timestamp string, body, secret []byte) []byte {
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(timestamp + "."))
	mac.Write(body)

	return mac.Sum(nil)
}

// ParseJob returns the job of a job event. It uses the job's state and not the event's name,
// because a late event can contain a later state. It returns false for events of builds and agents,
// for pings, and for jobs that no agent runs (block, wait and trigger steps). It truncates texts
// that are longer than a RunnerJob's fields, but never agent query rules, because they decide which
// runner takes the job.
func (Webhooks) ParseJob(header http.Header, body []byte) (workload.Job, bool, error) {
	event := header.Get(HeaderEvent)

	switch {
	case event == "":
		return workload.Job{}, false, ErrNoEvent
	case !strings.HasPrefix(event, "job."):
		return workload.Job{}, false, nil
	}

	var parsed payload
	if err := json.Unmarshal(body, &parsed); err != nil {
		return workload.Job{}, false, fmt.Errorf("%w: %w", ErrPayload, err)
	}

	if parsed.Job == nil || parsed.Job.Type == "" {
		return workload.Job{}, false, fmt.Errorf("%w: job.type is missing", ErrPayload)
	}

	if parsed.Job.Type != "script" {
		return workload.Job{}, false, nil
	}

	job, err := parsed.toJob()
	if err != nil {
		return workload.Job{}, false, err
	}

	return job, true, nil
}
