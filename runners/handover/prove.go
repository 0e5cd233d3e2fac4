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

// machineCaller is the caller of a request, and the kind of proof that it has sent.
type machineCaller struct {
	guestapi.Caller

	proof string
}

// authenticate checks that the caller is the claim's machine: the caller must send the claim code, or an
// SVID of the claim's SPIFFE ID. It sets machine.proof. An unauthenticated request causes no API calls,
// except that the operator verifies an SVID, and reads the claim to emit an event about a wrong proof.
func (h *Handler) authenticate(ctx context.Context, r *http.Request, machine *machineCaller) *guestapi.Refusal {
	token := guestapi.BearerToken(r)

	// A claim code has no dots, a JWT has two (RFC 7515, section 3.1).
	if strings.Count(token, ".") == 2 {
		machine.proof = v1alpha1.ProofSVID

		return h.authenticateSVID(ctx, machine.Caller, token)
	}

	machine.proof = v1alpha1.ProofClaimCode
	expected := vmspec.ClaimCode(h.Settings.ReportKey, machine.Namespace, machine.Name, machine.UID)

	if len(h.Settings.ReportKey) > 0 && guestapi.IsSameCode(token, expected) {
		return h.limits.CheckRate(machine.UID, h.Clock.Now())
	}

	return h.refuseWrongProof(ctx, machine.Caller, guestapi.NewTerminalRefusal(http.StatusUnauthorized,
		guestapi.OutcomeWrongCode, guest.ReasonCredentialRefused, "the claim code does not belong to this machine"))
}

// authenticateSVID checks that the JWT-SVID is valid for this operator and belongs to the claim's machine.
// Requests with an invalid SVID count against the rate limit of wrong proofs.
func (h *Handler) authenticateSVID(ctx context.Context, machine guestapi.Caller, svid string) *guestapi.Refusal {
	if h.Identity == nil {
		return h.refuseWrongProof(ctx, machine, guestapi.NewTerminalRefusal(http.StatusUnauthorized, outcomeWrongSVID,
			guest.ReasonCredentialRefused, "the operator has no SPIRE server that verifies SVIDs"))
	}

	id, err := h.Identity.Verify(ctx, svid, vmspec.CallbackAudience(h.Settings))

	switch {
	case identity.Is(err, identity.Rejected), identity.Is(err, identity.TrustDomainMismatch):
		log.FromContext(ctx).Info("SVID refused", "namespace", machine.Namespace, "claim", machine.Name, "reason", err.Error())

		return h.refuseWrongProof(ctx, machine, guestapi.NewTerminalRefusal(http.StatusUnauthorized, outcomeWrongSVID,
			guest.ReasonCredentialRefused, "the SVID is not valid for this operator"))
	case err != nil:
		log.FromContext(ctx).Error(err, "verify SVID", "namespace", machine.Namespace, "claim", machine.Name)

		return guestapi.NewTransientRefusal("the operator cannot verify the SVID at the moment: retry later")
	case id != identity.ID{Namespace: machine.Namespace, Name: machine.Name, UID: string(machine.UID)}:
		return h.refuseWrongProof(ctx, machine, guestapi.NewTerminalRefusal(http.StatusForbidden, outcomeWrongSVID,
			guest.ReasonIdentityMismatch, "the SVID belongs to another machine: "+id.Path()))
	default:
		return h.limits.CheckRate(machine.UID, h.Clock.Now())
	}
}

// refuseWrongProof returns a rate-limit refusal if there are too many requests with a wrong proof, and the
// given refusal with an event on the claim otherwise.
func (h *Handler) refuseWrongProof(ctx context.Context, machine guestapi.Caller, refusal *guestapi.Refusal) *guestapi.Refusal {
	return h.limits.RefuseWrongProof(ctx, h.Client, machine, h.Clock.Now(), refusal)
}
