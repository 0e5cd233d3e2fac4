// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"net/http"

	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/runners/connect"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// Pattern is the route that Handler serves.
const Pattern = "POST /machines/{namespace}/{name}/{uid}/credential"

// Reasons of the events on a claim.
const (
	ReasonHandedOver = "CredentialHandedOver"
	ReasonRefused    = "CredentialRefused"
)

// Handler hands over credentials. It needs no leader: any replica may answer.
//
// It answers 200 with a guest.Credential, else with a guest.Refusal: 401 for a wrong code or
// SVID, 403 where none was offered, where another proof was asked for, or for the SVID of
// another machine, 409 for one that was used, 410 where claim or job are over,
// and 429 and 503 with Retry-After where another try may help.
type Handler struct {
	// Client writes the claims' status, and reads the rest.
	Client client.Client
	// Live reads claims from the API server itself.
	Live      client.Reader
	Workloads *connect.Workloads
	// Identity verifies SVIDs; nil where the operator has no SPIRE server.
	Identity identity.Registry
	Recorder events.EventRecorder
	// Settings hold the key that claim codes are made of, and what runners are named by.
	Settings vmspec.Settings
	Metrics  *Metrics
	Clock    clock.PassiveClock

	limits guestapi.Limits
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims;hypervisormachinetemplates;runnerjobs,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs,verbs=create;update

// ServeHTTP answers one request.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	who := caller{Caller: guestapi.CallerOf(r)}

	ctx, cancel := context.WithTimeout(r.Context(), guestapi.Timeout)
	defer cancel()

	refused := h.prove(ctx, r, &who)
	if refused == nil {
		var credential guest.Credential

		if credential, refused = h.hand(ctx, who); refused == nil {
			h.Metrics.request(guestapi.OutcomeGiven)
			guestapi.Answer(w, http.StatusOK, credential)

			return
		}
	}

	h.Metrics.request(refused.Outcome)
	refused.Refuse(ctx, w, r, h.Recorder, guestapi.Words{
		Reason: ReasonRefused, Action: "HandOver", Log: "no credential was handed over",
	})
}
