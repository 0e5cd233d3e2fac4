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

// Headers of a Standard Webhook (https://www.standardwebhooks.com, "Webhook Headers"), and
// of a signature as GitHub makes it, in the form that Go gives to their names.
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
	// tolerance is how far a Standard Webhook's time may be off, in both directions.
	tolerance = 5 * time.Minute
	// maxSignatures bounds the work for one webhook; a sender that changes its secret
	// sends two.
	maxSignatures = 16
)

// Errors of a signature. They name the fix.
var (
	ErrNoSignature = errors.New("webhook has no signature: send the headers webhook-id, webhook-timestamp and webhook-signature, " +
		"or " + HeaderHubSignature + ", made with the secret that the RunnerPool's workload.webhook.secret holds")
	ErrNoSecret = errors.New("webhook secret is empty: an empty secret would let anybody in")
	ErrSecret   = errors.New("webhook secret begins with " + secretPrefix +
		", but is not followed by base64: write it as the sender shows it")
	ErrIncorrect = errors.New("webhook headers are incomplete: " +
		"webhook-signature needs webhook-id, and webhook-timestamp in seconds since 1970")
	ErrTimestamp = errors.New("webhook-timestamp is more than 5 minutes off: check both clocks, and sign each delivery anew")
)

// Verify checks a Standard Webhook's signature and age if there is one, else the
// signature in X-Hub-Signature-256. Comparisons take constant time. The error is
// workload.ErrSignature or one of this package's.
func (w Webhooks) Verify(header http.Header, body, secret []byte) error {
	if len(bytes.TrimSpace(secret)) == 0 {
		return ErrNoSecret
	}

	if given := header.Get(HeaderSignature); given != "" {
		return w.verifyStandard(header, given, body, secret)
	}

	if given := header.Get(HeaderHubSignature); given != "" {
		return verifyHub(given, body, secret)
	}

	return ErrNoSignature
}

func (w Webhooks) verifyStandard(header http.Header, given string, body, secret []byte) error {
	key, err := signingKey(secret)
	if err != nil {
		return err
	}

	id, stamp := header.Get(HeaderID), header.Get(HeaderTimestamp)

	seconds, err := strconv.ParseInt(stamp, 10, 64)
	if id == "" || err != nil {
		return ErrIncorrect
	}

	want, matches := standardMAC(key, id, stamp, body), false

	for i, one := range strings.Fields(given) {
		text, ok := strings.CutPrefix(one, versionPrefix)
		if !ok || i >= maxSignatures {
			continue
		}

		mac, err := base64.StdEncoding.DecodeString(text)
		if err == nil && hmac.Equal(mac, want) {
			matches = true
		}
	}

	if !matches {
		return workload.ErrSignature
	}

	// The age is told only to who knows the secret.
	if age := w.clock().Since(time.Unix(seconds, 0)); age.Abs() > tolerance {
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

func verifyHub(given string, body, secret []byte) error {
	text, ok := strings.CutPrefix(given, hubPrefix)
	if !ok {
		return workload.ErrSignature
	}

	mac, err := hex.DecodeString(text)
	if err != nil || !hmac.Equal(mac, sum(secret, body)) {
		return workload.ErrSignature
	}

	return nil
}

// signingKey is what a secret stands for: base64 after whsec_, else its own bytes.
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

func standardMAC(key []byte, id, stamp string, body []byte) []byte {
	return sum(key, []byte(id), []byte("."), []byte(stamp), []byte("."), body)
}

func sum(key []byte, parts ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, part := range parts {
		mac.Write(part)
	}

	return mac.Sum(nil)
}
