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
// (https://docs.gitlab.com/user/project/integrations/webhooks/#webhook-request-headers), in Go's
// canonical form. The signature headers are as in the Standard Webhooks specification
// (https://www.standardwebhooks.com).
const (
	HeaderEvent = "X-Gitlab-Event"
	// HeaderToken contains the secret token itself.
	HeaderToken     = "X-Gitlab-Token" //nolint:gosec // the name of a header
	HeaderID        = "Webhook-Id"
	HeaderTimestamp = "Webhook-Timestamp"
	HeaderSignature = "Webhook-Signature"
)

const (
	// SigningPrefix is the prefix of every signing token.
	SigningPrefix    = "whsec_"
	signatureVersion = "v1,"
	// maxSkew is the maximum difference between a signed timestamp and the current time, as
	// Standard Webhooks recommends.
	maxSkew = 5 * time.Minute
)

// Errors of webhooks that cannot be verified. They name the fix.
var (
	ErrNoToken = errors.New("webhook has no " + HeaderToken +
		" header: set the webhook's secret token at GitLab to the secret of the RunnerPool's workload.webhook.secret")
	ErrNoSignature = errors.New("webhook has no webhook-id, webhook-timestamp and webhook-signature headers: " +
		"set the webhook's signing token at GitLab to the secret of the RunnerPool's workload.webhook.secret")
	ErrNoSecret = errors.New("webhook secret is empty: set the RunnerPool's workload.webhook.secret, or anyone could sign webhooks")
	ErrSecret   = errors.New("webhook secret begins with " + SigningPrefix +
		" but is not a signing token: the rest must be the base64 text that GitLab shows")
	ErrTimestamp = errors.New("webhook timestamp is off by more than 5 minutes: the webhook is a replay, or a clock is wrong")
)

// Verify checks the secret token in constant time. If the secret is a signing token (whsec_), it
// checks the signature of id, timestamp and raw body instead, also in constant time. If the webhook
// has several signatures, one of them must match. The error is workload.ErrSignature or an error of
// this package.
func (w Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(secret) == 0 {
		return ErrNoSecret
	}

	if encoded, isSigningKey := strings.CutPrefix(string(secret), SigningPrefix); isSigningKey {
		return w.verifySignature(header, body, encoded)
	}

	token := header.Get(HeaderToken)
	if token == "" {
		return ErrNoToken
	}

	// Compare digests, so that the time does not depend on the secret's length.
	tokenDigest, secretDigest := sha256.Sum256([]byte(token)), sha256.Sum256(secret)
	if subtle.ConstantTimeCompare(tokenDigest[:], secretDigest[:]) != 1 {
		return workload.ErrSignature
	}

	return nil
}

// verifySignature verifies the signature with the decoded key, and then the age of the timestamp. One of
// several signatures must match.
func (w Webhooks) verifySignature(header http.Header, body []byte, encoded string) error {
	key, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil || len(key) == 0 {
		return ErrSecret
	}

	id, timestamp, signatures := header.Get(HeaderID), header.Get(HeaderTimestamp), header.Get(HeaderSignature)
	if id == "" || timestamp == "" || signatures == "" {
		return ErrNoSignature
	}

	expected := Sign(key, id, timestamp, body)
	isMatched := false

	for text := range strings.FieldsSeq(signatures) {
		text, isKnownVersion := strings.CutPrefix(text, signatureVersion)

		mac, err := base64.StdEncoding.DecodeString(text)
		if isKnownVersion && err == nil && hmac.Equal(mac, expected) {
			isMatched = true
		}
	}

	if !isMatched {
		return workload.ErrSignature
	}

	return w.checkAge(timestamp)
}

// checkAge checks the age of a timestamp whose signature is valid.
func (w Webhooks) checkAge(timestamp string) error {
	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if err != nil {
		return ErrTimestamp
	}

	// Compare seconds, because a time.Duration would overflow for very large timestamps.
	if age := w.now().Unix() - seconds; age > int64(maxSkew/time.Second) || age < -int64(maxSkew/time.Second) {
		return ErrTimestamp
	}

	return nil
}

// Sign returns the HMAC-SHA256 of a delivery. The key is the decoded base64 of a signing token.
func Sign(key []byte, id, timestamp string, body []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(id + "." + timestamp + "."))
	mac.Write(body)

	return mac.Sum(nil)
}
