// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guestapi

import (
	"context"
	"crypto/hmac"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

const (
	// Timeout limits how long the operator works on one request. The bootstrap service has a longer timeout.
	Timeout = 30 * time.Second
	// defaultRetryAfter is the Retry-After of a transient refusal.
	defaultRetryAfter = 5 * time.Second
)

// Outcomes of a request, as label values of the metrics.
const (
	OutcomeGiven       = "given"
	OutcomeWrongCode   = "wrong_code"
	OutcomeUsed        = "used"
	OutcomeNotOffered  = "not_offered"
	OutcomeGone        = "gone"
	OutcomeLimited     = "limited"
	OutcomeUnavailable = "unavailable"
)

// StartAtZero creates the series of all outcomes of this package and of further ones, because increase() does not see
// the first increment of a new series.
func StartAtZero(requests *prometheus.CounterVec, outcomes ...string) {
	for _, outcome := range append(outcomes, OutcomeGiven, OutcomeWrongCode, OutcomeUsed, OutcomeNotOffered, OutcomeGone,
		OutcomeLimited, OutcomeUnavailable) {
		requests.WithLabelValues(outcome)
	}
}

// Caller identifies the claim in the path of a request. The caller is not authenticated yet.
type Caller struct {
	types.NamespacedName

	UID types.UID
}

// ParseCaller reads the caller from the path of a route with {namespace}, {name} and {uid}.
func ParseCaller(r *http.Request) Caller {
	return Caller{
		NamespacedName: types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		UID:            types.UID(r.PathValue("uid")),
	}
}

// Refusal is a response that refuses the request of a machine.
type Refusal struct {
	guest.Refusal

	// Status is the HTTP status of the response.
	Status int
	// RetryAfter is the delay before the machine retries. It is 0 if a retry is useless.
	RetryAfter time.Duration
	// Outcome is an outcome of this package or of the endpoint.
	Outcome string
	// Claim gets an event about the refusal. It may be nil.
	Claim *v1alpha1.MachineClaim
}

// NewTransientRefusal returns a refusal with status 503: the machine retries after 5 seconds.
func NewTransientRefusal(message string) *Refusal {
	return &Refusal{
		Refusal: guest.Refusal{Message: message}, Status: http.StatusServiceUnavailable,
		RetryAfter: defaultRetryAfter, Outcome: OutcomeUnavailable,
	}
}

// NewTerminalRefusal returns a refusal after which the machine does not retry: it fails with the reason.
func NewTerminalRefusal(status int, outcome, reason, message string) *Refusal {
	return &Refusal{Refusal: guest.Refusal{Reason: reason, Message: message}, Status: status, Outcome: outcome}
}

// NewGoneRefusal returns a terminal refusal with status 410, for a claim that is deleted, or whose machine
// has stopped or ended.
func NewGoneRefusal(reason string) *Refusal {
	return NewTerminalRefusal(http.StatusGone, OutcomeGone, reason,
		"the claim of the machine was deleted, or its machine has already ended")
}

// WithClaim sets the claim that gets an event about the refusal.
func (r *Refusal) WithClaim(claim *v1alpha1.MachineClaim) *Refusal {
	r.Claim = claim

	return r
}

// WriteJSON writes the body as JSON, and forbids proxies to cache the response. It ignores errors of the
// connection, because a caller that has disconnected cannot be served.
func WriteJSON(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "cannot encode the response", http.StatusInternalServerError)

		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

// RefusalTexts are the texts with which an endpoint reports its refusals.
type RefusalTexts struct {
	// Reason and Action are the reason and the action of the event on the claim. LogMessage is the message
	// of the log line.
	Reason, Action, LogMessage string
}

// Respond writes the refusal as the response to the request, logs it, and emits an event on r.Claim if it
// is set.
func (r *Refusal) Respond(
	ctx context.Context, w http.ResponseWriter, req *http.Request, recorder events.EventRecorder, texts RefusalTexts,
) {
	caller := ParseCaller(req)

	if r.Claim != nil {
		recorder.Eventf(r.Claim, nil, corev1.EventTypeWarning, texts.Reason, texts.Action, "%s", r.Message)
	}

	log.FromContext(ctx).Info(texts.LogMessage, "namespace", caller.Namespace, "claim", caller.Name,
		"status", r.Status, "reason", r.Message, "remote", req.RemoteAddr)

	if r.RetryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(r.RetryAfter.Seconds()))))
	}

	WriteJSON(w, r.Status, r.Refusal)
}

// BearerToken returns the bearer token of a request, or "" if the request has none.
func BearerToken(r *http.Request) string {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return ""
	}

	return token
}

// IsSameCode compares two codes in constant time. It returns false if the expected code is empty.
func IsSameCode(code, expected string) bool {
	return expected != "" && hmac.Equal([]byte(code), []byte(expected))
}

// RefuseWrongProof returns a rate-limit refusal if there are too many requests with a wrong proof.
// Otherwise it returns the given refusal, and sets its Claim to the caller's claim, so that the claim gets
// an event.
func (l *Limits) RefuseWrongProof(
	ctx context.Context, reader client.Reader, caller Caller, now time.Time, refusal *Refusal,
) *Refusal {
	if limitRefusal := l.checkGuessRate(now); limitRefusal != nil {
		return limitRefusal
	}

	var claim v1alpha1.MachineClaim
	if err := reader.Get(ctx, caller.NamespacedName, &claim); err == nil && claim.UID == caller.UID {
		refusal.Claim = &claim
	}

	return refusal
}

// GetClaim reads the caller's claim from the API server. It returns a transient refusal if the claim cannot
// be read. It returns a terminal refusal with the given reason if the claim is deleted, its machine has
// stopped or ended, or a newer claim has the same name.
func GetClaim(ctx context.Context, live client.Reader, caller Caller, reason string) (*v1alpha1.MachineClaim, *Refusal) {
	var claim v1alpha1.MachineClaim

	err := live.Get(ctx, caller.NamespacedName, &claim)

	switch {
	case apierrors.IsNotFound(err), err == nil && claim.UID != caller.UID:
		return nil, NewGoneRefusal(reason)
	case err != nil:
		log.FromContext(ctx).Error(err, "read claim", "namespace", caller.Namespace, "claim", caller.Name)

		return nil, NewTransientRefusal("the operator cannot read the claim: retry later")
	case IsOver(&claim):
		return nil, NewGoneRefusal(reason)
	}

	return &claim, nil
}

// IsOver reports whether the claim is deleted, or its machine has stopped or ended. Such a machine gets
// nothing.
func IsOver(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times

	return !claim.DeletionTimestamp.IsZero() || (times != nil && (times.Stopped != nil || times.Ended != nil))
}
