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
	// Timeout bounds one request. The bootstrap service waits longer.
	Timeout = 30 * time.Second
	// again is when a machine should come again where nothing better is known.
	again = 5 * time.Second
)

// Outcomes of a request, as the metrics count them.
const (
	OutcomeGiven       = "given"
	OutcomeWrongCode   = "wrong_code"
	OutcomeUsed        = "used"
	OutcomeNotOffered  = "not_offered"
	OutcomeGone        = "gone"
	OutcomeLimited     = "limited"
	OutcomeUnavailable = "unavailable"
)

// Caller is the machine that a request says it comes from.
type Caller struct {
	types.NamespacedName

	UID types.UID
}

// CallerOf reads the path of a route with {namespace}, {name} and {uid}.
func CallerOf(r *http.Request) Caller {
	return Caller{
		NamespacedName: types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		UID:            types.UID(r.PathValue("uid")),
	}
}

// Refusal is why a machine is not given what it asks for.
type Refusal struct {
	guest.Refusal

	// Status of the answer, and how long the machine is to wait before it asks again; 0 where
	// that is of no use.
	Status int
	After  time.Duration
	// Outcome is one of this package's, or the endpoint's own.
	Outcome string
	// Claim that hears of it in an event; may be nil.
	Claim *v1alpha1.MachineClaim
}

// Later refuses for now.
func Later(message string) *Refusal {
	return &Refusal{
		Refusal: guest.Refusal{Message: message}, Status: http.StatusServiceUnavailable, After: again, Outcome: OutcomeUnavailable,
	}
}

// Never refuses for good: the machine ends with the reason.
func Never(status int, outcome, reason, message string) *Refusal {
	return &Refusal{Refusal: guest.Refusal{Reason: reason, Message: message}, Status: status, Outcome: outcome}
}

// Gone refuses a machine whose claim is over.
func Gone(reason string) *Refusal {
	return Never(http.StatusGone, OutcomeGone, reason, "the machine's claim is over")
}

// WithClaim has a claim hear of the refusal.
func (r *Refusal) WithClaim(claim *v1alpha1.MachineClaim) *Refusal {
	r.Claim = claim

	return r
}

// Answer writes JSON that nobody on the way may keep. A caller that has gone has what it
// will ever have.
func Answer(w http.ResponseWriter, status int, body any) {
	data, err := json.Marshal(body)
	if err != nil {
		http.Error(w, "no answer", http.StatusInternalServerError)

		return
	}

	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(data)
}

// Words are how an endpoint tells people of its refusals.
type Words struct {
	// Reason and Action of the event on the claim; Log is the line of the log.
	Reason, Action, Log string
}

// Refuse tells the machine, the claim's events and the log.
func (r *Refusal) Refuse(
	ctx context.Context, w http.ResponseWriter, from *http.Request, recorder events.EventRecorder, words Words,
) {
	who := CallerOf(from)

	if r.Claim != nil {
		recorder.Eventf(r.Claim, nil, corev1.EventTypeWarning, words.Reason, words.Action, "%s", r.Message)
	}

	log.FromContext(ctx).Info(words.Log, "namespace", who.Namespace, "claim", who.Name,
		"status", r.Status, "why", r.Message, "remote", from.RemoteAddr)

	if r.After > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(r.After.Seconds()))))
	}

	Answer(w, r.Status, r.Refusal)
}

// Bearer gives the token of a request, empty where it has none.
func Bearer(r *http.Request) string {
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		return ""
	}

	return token
}

// Same compares a code with the one that is wanted, in a time that tells nothing of it. An
// empty one is never the same.
func Same(given, want string) bool { return want != "" && hmac.Equal([]byte(given), []byte(want)) }

// Wrong holds back who brings a wrong proof, and else has the caller's claim hear of the
// refusal.
func (l *Limits) Wrong(ctx context.Context, reader client.Reader, who Caller, now time.Time, refused *Refusal) *Refusal {
	if limited := l.guess(now); limited != nil {
		return limited
	}

	var claim v1alpha1.MachineClaim
	if err := reader.Get(ctx, who.NamespacedName, &claim); err == nil && claim.UID == who.UID {
		refused.Claim = &claim
	}

	return refused
}

// Read gives the caller's claim as it is now, refused where that cannot be told, and with
// the reason where it is over: deleted, stopped, ended, or another claim of the same name.
func Read(ctx context.Context, live client.Reader, who Caller, reason string) (*v1alpha1.MachineClaim, *Refusal) {
	var claim v1alpha1.MachineClaim

	err := live.Get(ctx, who.NamespacedName, &claim)

	switch {
	case apierrors.IsNotFound(err), err == nil && claim.UID != who.UID:
		return nil, Gone(reason)
	case err != nil:
		log.FromContext(ctx).Error(err, "claim was not read", "namespace", who.Namespace, "claim", who.Name)

		return nil, Later("the claim cannot be read: try again")
	case Over(&claim):
		return nil, Gone(reason)
	}

	return &claim, nil
}

// Over says whether a claim's machine is given nothing any more.
func Over(claim *v1alpha1.MachineClaim) bool {
	times := claim.Status.Times

	return !claim.DeletionTimestamp.IsZero() || (times != nil && (times.Stopped != nil || times.Ended != nil))
}
