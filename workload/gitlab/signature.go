// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package gitlab

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/workload"
)

// Headers of a delivery
// (https://docs.gitlab.com/user/project/integrations/webhooks/#webhook-request-headers),
// in the form that Go gives to their names. Those of the signature are of the Standard
// Webhooks specification (https://www.standardwebhooks.com).
const (
	HeaderEvent = "X-Gitlab-Event"
	// HeaderToken holds the secret token itself.
	HeaderToken = "X-Gitlab-Token" //nolint:gosec // the name of a header
	// HeaderUUID is the event's, the same for each hook that is told of it.
	HeaderUUID = "X-Gitlab-Event-Uuid"
	// HeaderInstance is the URL of the instance that sends.
	HeaderInstance  = "X-Gitlab-Instance"
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

const (
	// SigningPrefix begins every signing token.
	SigningPrefix    = "whsec_"
	signatureVersion = "v1,"
	// maxSkew is how far a signed timestamp may be from now, as Standard Webhooks has it.
	maxSkew = 5 * time.Minute
)

// Errors of a webhook that can't be verified. They name the fix.
var (
	ErrNoToken = errors.New("webhook has no " + HeaderToken +
		" header: set the secret token of the webhook at GitLab to what the RunnerPool's workload.webhook.secret holds")
	ErrNoSignature = errors.New("webhook has no webhook-id, webhook-timestamp and webhook-signature headers: " +
		"set the signing token of the webhook at GitLab to what the RunnerPool's workload.webhook.secret holds")
	ErrNoSecret = errors.New("webhook secret is empty: an empty secret would let anybody in")
	ErrSecret   = errors.New("webhook secret begins with " + SigningPrefix +
		" and is no signing token: what follows must be the base64 text that GitLab shows")
	ErrTimestamp = errors.New("webhook was signed more than 5 minutes from now: it is a repetition, or a clock is wrong")
)

// Verify checks the secret token or, where the secret is a signing token (whsec_), the
// signature of id, timestamp and raw body, both in constant time. Of several signatures
// one must match. The error is workload.ErrSignature or one of those above.
func (w Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(secret) == 0 {
		return ErrNoSecret
	}

	if encoded, signed := strings.CutPrefix(string(secret), SigningPrefix); signed {
		return w.verifySignature(header, body, encoded)
	}

	given := header.Get(HeaderToken)
	if given == "" {
		return ErrNoToken
	}

	// Of equal length: how long the secret is must not show either.
	a, b := sha256.Sum256([]byte(given)), sha256.Sum256(secret)
	if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
		return workload.ErrSignature
	}

	return nil
}

func (w Webhooks) verifySignature(header http.Header, body []byte, encoded string) error {
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(key) == 0 {
		return ErrSecret
	}

	id, stamp, given := header.Get(HeaderID), header.Get(HeaderTimestamp), header.Get(HeaderSignature)
	if id == "" || stamp == "" || given == "" {
		return ErrNoSignature
	}

	want, matched := Sign(key, id, stamp, body), false

	for text := range strings.FieldsSeq(given) {
		text, known := strings.CutPrefix(text, signatureVersion)

		mac, err := base64.StdEncoding.DecodeString(text)
		if known && err == nil && hmac.Equal(mac, want) {
			matched = true
		}
	}

	if !matched {
		return workload.ErrSignature
	}

	return w.checkAge(stamp)
}

// checkAge is for a timestamp whose signature is right.
func (w Webhooks) checkAge(stamp string) error {
	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if err != nil {
		return ErrTimestamp
	}

	// Compared in seconds, so that no number is too large for a duration.
	if age := w.now().Unix() - seconds; age > int64(maxSkew/time.Second) || age < -int64(maxSkew/time.Second) {
		return ErrTimestamp
	}

	return nil
}

// Sign gives the HMAC-SHA256 of a delivery by the key that a signing token holds.
func Sign(key []byte, id, stamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + stamp + "."))
	mac.Write(body)

	return mac.Sum(nil)
}
