// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package handover

import (
	"context"
	"net/http"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
)

// caller is the machine that the request says it comes from, and what proves that.
type caller struct {
	guestapi.Caller

	proof string
}

// prove decides whether the caller is the claim's machine: it has the claim's code, or an
// SVID of the claim's identity. Before that is known nothing is asked of anybody, but for the
// claim that hears of a wrong proof.
func (h *Handler) prove(ctx context.Context, r *http.Request, who *caller) *guestapi.Refusal {
	given := guestapi.Bearer(r)

	// A claim code has no dots, a JWT has two (RFC 7515, section 3.1).
	if strings.Count(given, ".") == 2 {
		who.proof = v1alpha1.ProofSVID

		return h.proveSVID(ctx, who.Caller, given)
	}

	who.proof = v1alpha1.ProofClaimCode
	want := vmspec.ClaimCode(h.Settings.ReportKey, who.Namespace, who.Name, who.UID)

	if len(h.Settings.ReportKey) > 0 && guestapi.Same(given, want) {
		return h.limits.Genuine(who.UID, h.Clock.Now())
	}

	return h.wrong(ctx, who.Caller, guestapi.Never(http.StatusUnauthorized, guestapi.OutcomeWrongCode, guest.ReasonCredentialRefused,
		"the claim code is not this machine's"))
}

// proveSVID takes a JWT-SVID for a proof. Who has one that is not valid is held back as who
// guesses codes is, before anybody is asked.
func (h *Handler) proveSVID(ctx context.Context, who guestapi.Caller, svid string) *guestapi.Refusal {
	if h.Identity == nil {
		return h.wrong(ctx, who, guestapi.Never(http.StatusUnauthorized, outcomeWrongSVID, guest.ReasonCredentialRefused,
			"this operator has no SPIRE server to verify SVIDs with"))
	}

	id, err := h.Identity.Verify(ctx, svid, vmspec.CallbackAudience(h.Settings))

	switch {
	case identity.Is(err, identity.Rejected), identity.Is(err, identity.TrustDomainMismatch):
		log.FromContext(ctx).Info("an SVID was refused", "namespace", who.Namespace, "claim", who.Name, "why", err.Error())

		return h.wrong(ctx, who, guestapi.Never(http.StatusUnauthorized, outcomeWrongSVID, guest.ReasonCredentialRefused,
			"the SVID is not valid here"))
	case err != nil:
		log.FromContext(ctx).Error(err, "SVID was not verified", "namespace", who.Namespace, "claim", who.Name)

		return guestapi.Later("the SVID cannot be verified at present: try again")
	case id != identity.ID{Namespace: who.Namespace, Name: who.Name, UID: string(who.UID)}:
		return h.wrong(ctx, who, guestapi.Never(http.StatusForbidden, outcomeWrongSVID, guest.ReasonIdentityMismatch,
			"the SVID is of another machine: "+id.Path()))
	default:
		return h.limits.Genuine(who.UID, h.Clock.Now())
	}
}

// wrong holds back who brings wrong proofs, and has the claim hear of them.
func (h *Handler) wrong(ctx context.Context, who guestapi.Caller, refused *guestapi.Refusal) *guestapi.Refusal {
	return h.limits.Wrong(ctx, h.Client, who, h.Clock.Now(), refused)
}
