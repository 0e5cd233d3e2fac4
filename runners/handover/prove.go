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
	"github.com/hyperfleet/hyperfleet/runners/desk"
	"github.com/hyperfleet/hyperfleet/runners/machine"
)

// caller is the machine that the request says it comes from, and what proves that.
type caller struct {
	desk.Caller

	proof string
}

// prove decides whether the caller is the claim's machine: it has the claim's code, or an
// SVID of the claim's identity. Before that is known nothing is asked of anybody, but for the
// claim that hears of a wrong proof.
func (d *Desk) prove(ctx context.Context, r *http.Request, who *caller) *desk.Refusal {
	given := desk.Bearer(r)

	// A claim code has no dots, a JWT has two (RFC 7515, section 3.1).
	if strings.Count(given, ".") == 2 {
		who.proof = v1alpha1.ProofSVID

		return d.proveSVID(ctx, who.Caller, given)
	}

	who.proof = v1alpha1.ProofClaimCode
	want := machine.ClaimCode(d.Settings.ReportKey, who.Namespace, who.Name, who.UID)

	if len(d.Settings.ReportKey) > 0 && desk.Same(given, want) {
		return d.limits.Genuine(who.UID, d.Clock.Now())
	}

	return d.wrong(ctx, who.Caller, desk.Never(http.StatusUnauthorized, desk.OutcomeWrongCode, guest.ReasonCredentialRefused,
		"the claim code is not this machine's"))
}

// proveSVID takes a JWT-SVID for a proof. Who has one that is not valid is held back as who
// guesses codes is, before anybody is asked.
func (d *Desk) proveSVID(ctx context.Context, who desk.Caller, svid string) *desk.Refusal {
	if d.Identity == nil {
		return d.wrong(ctx, who, desk.Never(http.StatusUnauthorized, outcomeWrongSVID, guest.ReasonCredentialRefused,
			"this operator has no SPIRE server to verify SVIDs with"))
	}

	id, err := d.Identity.Verify(ctx, svid, machine.CallbackAudience(d.Settings))

	switch {
	case identity.Is(err, identity.Rejected), identity.Is(err, identity.TrustDomainMismatch):
		log.FromContext(ctx).Info("an SVID was refused", "namespace", who.Namespace, "claim", who.Name, "why", err.Error())

		return d.wrong(ctx, who, desk.Never(http.StatusUnauthorized, outcomeWrongSVID, guest.ReasonCredentialRefused,
			"the SVID is not valid here"))
	case err != nil:
		log.FromContext(ctx).Error(err, "SVID was not verified", "namespace", who.Namespace, "claim", who.Name)

		return desk.Later("the SVID cannot be verified at present: try again")
	case id != identity.ID{Namespace: who.Namespace, Name: who.Name, UID: string(who.UID)}:
		return d.wrong(ctx, who, desk.Never(http.StatusForbidden, outcomeWrongSVID, guest.ReasonIdentityMismatch,
			"the SVID is of another machine: "+id.Path()))
	default:
		return d.limits.Genuine(who.UID, d.Clock.Now())
	}
}

// wrong holds back who brings wrong proofs, and has the claim hear of them.
func (d *Desk) wrong(ctx context.Context, who desk.Caller, refused *desk.Refusal) *desk.Refusal {
	return d.limits.Wrong(ctx, d.Client, who, d.Clock.Now(), refused)
}
