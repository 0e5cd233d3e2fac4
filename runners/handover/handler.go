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

// Reasons of the events that the handler emits for a claim.
const (
	ReasonHandedOver = "CredentialHandedOver"
	ReasonRefused    = "CredentialRefused"
)

// Handler hands credentials over to machines. It needs no leader election: every replica can serve requests.
//
// Status 200 returns a guest.Credential. Every other status returns a guest.Refusal:
//
//   - 401: the claim code or the SVID is wrong.
//   - 403: no credential was offered to the machine, the machine must use another proof, or the SVID belongs
//     to another machine.
//   - 409: the proof was used before.
//   - 410: the claim is deleted, its machine has stopped or ended, or its job is no longer available.
//   - 429 and 503: the machine can retry after Retry-After.
type Handler struct {
	// Client writes the status of claims, and reads all other objects.
	Client client.Client
	// Live reads claims from the API server and bypasses the cache.
	Live      client.Reader
	Workloads *connect.Workloads
	// Identity verifies SVIDs. It is nil if the operator has no SPIRE server.
	Identity identity.Registry
	Recorder events.EventRecorder
	// Settings holds the key from which claim codes are derived, and the operator UID for runner labels.
	Settings vmspec.Settings
	Metrics  *Metrics
	Clock    clock.PassiveClock

	limits guestapi.Limits
}

//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims;hypervisormachinetemplates;runnerjobs,verbs=get;list;watch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=machineclaims/status,verbs=patch
//+kubebuilder:rbac:groups=hyperfleet.io,resources=runnerjobs,verbs=create;update

// ServeHTTP authenticates the machine, and issues its credential.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	machine := machineCaller{Caller: guestapi.ParseCaller(r)}

	ctx, cancel := context.WithTimeout(r.Context(), guestapi.Timeout)
	defer cancel()

	refusal := h.authenticate(ctx, r, &machine)
	if refusal == nil {
		var credential guest.Credential

		if credential, refusal = h.issueCredential(ctx, machine); refusal == nil {
			h.Metrics.countRequest(guestapi.OutcomeGiven)
			guestapi.WriteJSON(w, http.StatusOK, credential)

			return
		}
	}

	h.Metrics.countRequest(refusal.Outcome)
	refusal.Respond(ctx, w, r, h.Recorder, guestapi.RefusalTexts{
		Reason: ReasonRefused, Action: "HandOver", LogMessage: "credential request refused",
	})
}
