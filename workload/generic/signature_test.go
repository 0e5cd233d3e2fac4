// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package generic_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/generic"
)

// exampleSecret and the others are the test vector of the Standard Webhooks libraries.
const (
	exampleSecret    = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
	exampleID        = "msg_p5jXN8AQM9LWM0D4loKWxJek"
	exampleTime      = 1614265330
	exampleBody      = `{"test": 2432232314}`
	exampleSignature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="
)

// newWebhooks returns Webhooks whose clock is ahead of the test vector's time.
func newWebhooks(late time.Duration) generic.Webhooks {
	return generic.Webhooks{Clock: clocktesting.NewFakePassiveClock(time.Unix(exampleTime, 0).Add(late))}
}

func newStandardHeader(id string, at int64, signature string) http.Header {
	out := http.Header{}
	out.Set(generic.HeaderID, id)
	out.Set(generic.HeaderTimestamp, strconv.FormatInt(at, 10))
	out.Set(generic.HeaderSignature, signature)

	return out
}

func computeMAC(key, text string) []byte {
	h := hmac.New(sha256.New, []byte(key))
	h.Write([]byte(text))

	return h.Sum(nil)
}

func TestStandardSignature(t *testing.T) {
	t.Parallel()

	right := newStandardHeader(exampleID, exampleTime, exampleSignature)
	with := func(edit func(http.Header)) http.Header {
		out := right.Clone()
		edit(out)

		return out
	}
	hubBeside := with(func(h http.Header) {
		h.Set(generic.HeaderSignature, "v1,AAAA")
		h.Set(generic.HeaderHubSignature, "sha256="+hex.EncodeToString(computeMAC(exampleSecret, exampleBody)))
	})

	for name, tc := range map[string]struct {
		header http.Header
		secret string
		late   time.Duration
		want   error
	}{
		"the published example": {header: right},
		"secret with a newline": {header: right, secret: exampleSecret + "\n"},
		"five minutes late":     {header: right, late: 5 * time.Minute},
		"later":                 {header: right, late: 5*time.Minute + time.Second, want: generic.ErrTimestamp},
		"five minutes early":    {header: right, late: -5 * time.Minute},
		"earlier":               {header: right, late: -5*time.Minute - time.Second, want: generic.ErrTimestamp},
		"too old and wrong":     {header: with(func(h http.Header) { h.Set(generic.HeaderSignature, "v1,AAAA") }), late: time.Hour, want: workload.ErrSignature},
		"one of two":            {header: with(func(h http.Header) { h.Set(generic.HeaderSignature, "v1,AAAA v1a,zzz "+exampleSignature) })},
		"one of a thousand signatures": {
			header: with(func(h http.Header) { h.Set(generic.HeaderSignature, strings.Repeat("v1,AAAA ", 1000)+exampleSignature) }),
			want:   workload.ErrSignature,
		},
		"other version":     {header: with(func(h http.Header) { h.Set(generic.HeaderSignature, "v2"+exampleSignature[2:]) }), want: workload.ErrSignature},
		"no base64":         {header: with(func(h http.Header) { h.Set(generic.HeaderSignature, "v1,***") }), want: workload.ErrSignature},
		"other id":          {header: with(func(h http.Header) { h.Set(generic.HeaderID, "msg_2") }), want: workload.ErrSignature},
		"other time":        {header: with(func(h http.Header) { h.Set(generic.HeaderTimestamp, "1614265331") }), want: workload.ErrSignature},
		"no id":             {header: with(func(h http.Header) { h.Del(generic.HeaderID) }), want: generic.ErrIncorrect},
		"no time":           {header: with(func(h http.Header) { h.Del(generic.HeaderTimestamp) }), want: generic.ErrIncorrect},
		"time in words":     {header: with(func(h http.Header) { h.Set(generic.HeaderTimestamp, "2021-02-25T15:02:10Z") }), want: generic.ErrIncorrect},
		"other secret":      {header: right, secret: "whsec_AAAA", want: workload.ErrSignature},
		"secret not base64": {header: right, secret: "whsec_***", want: generic.ErrSecret},
		"secret cut off":    {header: right, secret: "whsec_", want: generic.ErrSecret},
		"no secret":         {header: right, secret: " \n", want: generic.ErrNoSecret},
		"no header":         {header: http.Header{}, want: generic.ErrNoSignature},
		// An invalid signature must not be ignored in favor of the weaker kind.
		"the other signature is not used instead": {header: hubBeside, want: workload.ErrSignature},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			secret := tc.secret
			if secret == "" {
				secret = exampleSecret
			}

			err := newWebhooks(tc.late).Verify(tc.header, []byte(exampleBody), []byte(secret))
			if !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}

			if err != nil && strings.Contains(err.Error(), exampleSecret[6:]) {
				t.Errorf("the error holds the secret: %v", err)
			}
		})
	}
}

func TestPlainSecrets(t *testing.T) {
	t.Parallel()

	const secret, body = "any bytes", `{"id":"1","source":"s"}`

	now := time.Now().Unix()
	text := "m." + strconv.FormatInt(now, 10) + "." + body
	standardWay := newStandardHeader("m", now, "v1,"+base64.StdEncoding.EncodeToString(computeMAC(secret, text)))
	hub := http.Header{}
	hub.Set(generic.HeaderHubSignature, "sha256="+hex.EncodeToString(computeMAC(secret, body)))

	upper := http.Header{}
	upper.Set(generic.HeaderHubSignature, "sha256="+strings.ToUpper(hex.EncodeToString(computeMAC(secret, body))))

	sha1 := http.Header{}
	sha1.Set(generic.HeaderHubSignature, "sha1="+hex.EncodeToString(computeMAC(secret, body)))

	for name, tc := range map[string]struct {
		header http.Header
		body   string
		secret string
		want   error
	}{
		"standard, by the real clock": {standardWay, body, secret, nil},
		"hub":                         {hub, body, secret, nil},
		"hub in capitals":             {upper, body, secret, nil},
		"hub, other body":             {hub, body + " ", secret, workload.ErrSignature},
		"hub, other secret":           {hub, body, "other", workload.ErrSignature},
		"hub, other digest":           {sha1, body, secret, workload.ErrSignature},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if err := (generic.Webhooks{}).Verify(tc.header, []byte(tc.body), []byte(tc.secret)); !errors.Is(err, tc.want) {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}
