// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/utils/clock"

	"github.com/hyperfleet/hyperfleet/workload"
)

// Headers of a Standard Webhook (https://www.standardwebhooks.com, "Webhook Headers") and of
// GitHub's signature, in Go's canonical form.
const (
	HeaderID           = "Webhook-Id"
	HeaderTimestamp    = "Webhook-Timestamp"
	HeaderSignature    = "Webhook-Signature"
	HeaderHubSignature = "X-Hub-Signature-256"
)

const (
	versionPrefix = "v1,"
	hubPrefix     = "sha256="
	secretPrefix  = "whsec_"
	// maxSkew is the maximum difference between a Standard Webhook's time and the current time, in
	// both directions.
	maxSkew = 5 * time.Minute
	// maxSignatures bounds the work for one webhook. A sender that rotates its secret sends two
	// signatures.
	maxSignatures = 16
)

// Errors of a signature. They name the fix.
var (
	ErrNoSignature = errors.New("webhook has no signature: send the headers webhook-id, webhook-timestamp and webhook-signature, " +
		"or " + HeaderHubSignature + ", signed with the secret of the RunnerPool's workload.webhook.secret")
	ErrNoSecret = errors.New("webhook secret is empty: set the RunnerPool's workload.webhook.secret, or anyone could sign webhooks")
	ErrSecret   = errors.New("webhook secret begins with " + secretPrefix +
		", but the rest is not base64: copy the secret as the sender shows it")
	ErrIncorrect = errors.New("webhook headers are incomplete: " +
		"webhook-signature needs webhook-id, and webhook-timestamp in seconds since 1970")
	ErrTimestamp = errors.New("webhook-timestamp is off by more than 5 minutes: check both clocks, and sign each delivery again")
)

// Verify checks the signature and age of a Standard Webhook, or, if it has no such signature, the
// one in X-Hub-Signature-256. Comparisons take constant time. The error is workload.ErrSignature or
// an error of this package.
func (w Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(bytes.TrimSpace(secret)) == 0 {
		return ErrNoSecret
	}

	if signature := header.Get(HeaderSignature); signature != "" {
		return w.verifyStandard(header, signature, body, secret)
	}

	if signature := header.Get(HeaderHubSignature); signature != "" {
		return verifyHub(signature, body, secret)
	}

	return ErrNoSignature
}

// verifyStandard verifies the signatures of Standard Webhooks: one of the first maxSignatures must match,
// and the timestamp must be at most maxSkew away from now.
func (w Webhooks) verifyStandard(header http.Header, signatures string, body, secret []byte) error {
	key, err := signingKey(secret)
	if err != nil {
		return err
	}

	id, timestamp := header.Get(HeaderID), header.Get(HeaderTimestamp)

	seconds, err := strconv.ParseInt(timestamp, 10, 64)
	if id == "" || err != nil {
		return ErrIncorrect
	}

	expected := computeStandardMAC(key, id, timestamp, body)
	isMatched := false

	for i, signature := range strings.Fields(signatures) {
		text, ok := strings.CutPrefix(signature, versionPrefix)
		if !ok || i >= maxSignatures {
			continue
		}

		mac, err := base64.StdEncoding.DecodeString(text)
		if err == nil && hmac.Equal(mac, expected) {
			isMatched = true
		}
	}

	if !isMatched {
		return workload.ErrSignature
	}

	// Check the age last, so that only a sender that knows the secret learns the result.
	if age := w.clock().Since(time.Unix(seconds, 0)); age.Abs() > maxSkew {
		return ErrTimestamp
	}

	return nil
}

func (w Webhooks) clock() clock.PassiveClock {
	if w.Clock == nil {
		return clock.RealClock{}
	}

	return w.Clock
}

func verifyHub(signature string, body, secret []byte) error {
	text, ok := strings.CutPrefix(signature, hubPrefix)
	if !ok {
		return workload.ErrSignature
	}

	mac, err := hex.DecodeString(text)
	if err != nil || !hmac.Equal(mac, computeHMAC(secret, body)) {
		return workload.ErrSignature
	}

	return nil
}

// signingKey returns the key of a secret: the decoded base64 after whsec_, or the secret itself.
func signingKey(secret []byte) ([]byte, error) {
	text, ok := bytes.CutPrefix(bytes.TrimSpace(secret), []byte(secretPrefix))
	if !ok {
		return secret, nil
	}

	key, err := base64.StdEncoding.DecodeString(string(text))
	if err != nil || len(key) == 0 {
		return nil, ErrSecret
	}

	return key, nil
}

func computeStandardMAC(key []byte, id, timestamp string, body []byte) []byte {
	return computeHMAC(key, []byte(id), []byte("."), []byte(timestamp), []byte("."), body)
}

func computeHMAC(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, part := range parts {
		mac.Write(part)
	}

	return mac.Sum(nil)
}
