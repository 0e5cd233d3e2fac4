// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

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
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/machine"
)

const (
	// Pattern is the route that Desk serves.
	Pattern = "POST /machines/{namespace}/{name}/{uid}/credential"

	// timeout bounds one request. The bootstrap service waits longer.
	timeout = 30 * time.Second
	// again is when a machine should come again where nothing better is known.
	again = 5 * time.Second
)

// Reasons of the events on a claim.
const (
	ReasonHandedOver = "CredentialHandedOver"
	ReasonRefused    = "CredentialRefused"
)

// Desk hands over credentials. It needs no leader: any replica may answer.
//
// It answers 200 with a guest.Credential, else with a guest.Refusal: 401 for a wrong code,
// 403 where none was offered, 409 for one that was used, 410 where claim or job are over,
// and 429 and 503 with Retry-After where another try may help.
type Desk struct {
	// Client writes the claims' status, and reads the rest.
	Client client.Client
	// Live reads claims from the API server itself.
	Live      client.Reader
	Workloads *connect.Workloads
	Recorder  events.EventRecorder
	// Settings hold the key that claim codes are made of, and what runners are named by.
	Settings machine.Settings
	Metrics  *Metrics
	Clock    clock.PassiveClock

	limits limits
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims;hypervisormachinetemplates;runnerjobs,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=get;update;patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs,verbs=create;update

// caller is the machine that the request says it comes from.
type caller struct {
	types.NamespacedName

	uid types.UID
}

// refusal is why nothing is handed over.
type refusal struct {
	guest.Refusal

	status  int
	after   time.Duration
	outcome string
	// claim that hears of it in an event; may be nil.
	claim *v1alpha1.MachineClaim
}

// later refuses for now.
func later(message string) *refusal {
	return &refusal{
		Refusal: guest.Refusal{Message: message}, status: http.StatusServiceUnavailable, after: again, outcome: outcomeUnavailable,
	}
}

// never refuses for good: the machine ends with the reason.
func never(status int, outcome, reason, message string) *refusal {
	return &refusal{Refusal: guest.Refusal{Reason: reason, Message: message}, status: status, outcome: outcome}
}

// ServeHTTP answers one request.
func (d *Desk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who := caller{
		NamespacedName: types.NamespacedName{Namespace: r.PathValue("namespace"), Name: r.PathValue("name")},
		uid:            types.UID(r.PathValue("uid")),
	}

	ctx, cancel := context.WithTimeout(r.Context(), timeout)
	defer cancel()

	refused := d.prove(ctx, r, who)
	if refused == nil {
		var credential guest.Credential

		if credential, refused = d.hand(ctx, who); refused == nil {
			d.Metrics.request(outcomeGiven)
			answer(w, http.StatusOK, credential)

			return
		}
	}

	d.Metrics.request(refused.outcome)

	if refused.claim != nil {
		d.Recorder.Eventf(refused.claim, nil, corev1.EventTypeWarning, ReasonRefused, "HandOver", "%s", refused.Message)
	}

	log.FromContext(ctx).Info("no credential was handed over", "namespace", who.Namespace, "claim", who.Name,
		"status", refused.status, "why", refused.Message, "remote", r.RemoteAddr)

	if refused.after > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(refused.after.Seconds()))))
	}

	answer(w, refused.status, refused.Refusal)
}

// prove decides whether the caller is the claim's machine: it has the claim's code. Before
// that is known nothing is asked of anybody, but for the claim that hears of a wrong code.
func (d *Desk) prove(ctx context.Context, r *http.Request, who caller) *refusal {
	given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	want := machine.ClaimCode(d.Settings.ReportKey, who.Namespace, who.Name, who.uid)

	if ok && len(d.Settings.ReportKey) > 0 && hmac.Equal([]byte(given), []byte(want)) {
		return limited(d.limits.genuine(who.uid, d.Clock.Now()))
	}

	if refused := limited(d.limits.guess(d.Clock.Now())); refused != nil {
		return refused
	}

	refused := never(http.StatusUnauthorized, outcomeWrongCode, guest.ReasonCredentialRefused,
		"the claim code is not this machine's")

	var claim v1alpha1.MachineClaim
	if err := d.Client.Get(ctx, who.NamespacedName, &claim); err == nil && claim.UID == who.uid {
		refused.claim = &claim
	}

	return refused
}

func limited(wait time.Duration) *refusal {
	if wait <= 0 {
		return nil
	}

	return &refusal{
		Refusal: guest.Refusal{Message: "too many requests"},
		status:  http.StatusTooManyRequests, after: wait, outcome: outcomeLimited,
	}
}

// answer writes JSON that nobody on the way may keep. A caller that has gone has what it
// will ever have.
func answer(w http.ResponseWriter, status int, body any) {
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
