// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package devid

import (
	"context"
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity/devid"
	"github.com/hyperfleet/hyperfleet/runners/guestapi"
)

const (
	// IndexEK is the index of claims by the SHA-256 of the endorsement certificate of their machine's TPM.
	IndexEK = "status.bootstrapInfo.identity.device.ekCertificateSHA256"

	// maxWriteAttempts limits how often a status write is retried after a conflict.
	maxWriteAttempts = 8
)

// ExtractEK returns the values of IndexEK for a claim: none if the claim has no endorsement certificate.
func ExtractEK(obj client.Object) []string {
	claim, ok := obj.(*v1alpha1.MachineClaim)
	if !ok {
		return nil
	}

	if device := getDeviceIdentity(claim); device != nil && device.EKCertificateSHA256 != "" {
		return []string{device.EKCertificateSHA256}
	}

	return nil
}

// getDeviceIdentity returns the device identity in the claim's status, or nil if none is recorded.
func getDeviceIdentity(claim *v1alpha1.MachineClaim) *v1alpha1.DeviceIdentity {
	info := claim.Status.BootstrapInfo
	if info == nil || info.Identity == nil {
		return nil
	}

	return info.Identity.Device
}

// recordKey records the key in the claim's status as the only key that is certified for the claim. If two
// requests race, optimistic locking lets only one of them write. isFirst is true if this call has recorded
// the key, and false if the same key was recorded before.
func (h *Handler) recordKey(
	ctx context.Context, caller guestapi.Caller, request guest.DevIDRequest,
) (claim *v1alpha1.MachineClaim, isFirst bool, refusal *guestapi.Refusal) {
	for attempt := 1; ; attempt++ {
		claim, refusal := guestapi.GetClaim(ctx, h.Live, caller, guest.ReasonAttestationRefused)
		if refusal != nil {
			return nil, false, refusal
		}

		isRecorded, refusal := checkKey(claim, request.Public)
		if refusal != nil || isRecorded {
			return claim, false, refusal
		}

		device := &v1alpha1.DeviceIdentity{
			PublicKeySHA256: devid.Fingerprint(request.Public), RequestedAt: metav1.NewMicroTime(h.Clock.Now()),
		}

		if len(request.EKCertificate) > 0 {
			device.EKCertificateSHA256 = devid.Fingerprint(request.EKCertificate)

			if refusal := h.requireUniqueTPM(ctx, claim, device); refusal != nil {
				return nil, false, refusal
			}
		}

		base := claim.DeepCopy()
		claim.Status.BootstrapInfo.Identity.Device = device

		err := h.Client.Status().Patch(ctx, claim, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))

		switch {
		case err == nil:
			return claim, true, nil
		case apierrors.IsNotFound(err):
			return nil, false, guestapi.NewGoneRefusal(guest.ReasonAttestationRefused)
		case !apierrors.IsConflict(err) || attempt == maxWriteAttempts:
			log.FromContext(ctx).Error(err, "write device identity to claim status", "namespace", caller.Namespace, "claim", caller.Name)

			return nil, false, guestapi.NewTransientRefusal("the operator cannot update the claim: retry later")
		}
	}
}

// checkKey returns a refusal if the key cannot be certified for the claim's machine. isRecorded is true if
// the key is already recorded for the claim. checkKey is pure.
func checkKey(claim *v1alpha1.MachineClaim, public []byte) (isRecorded bool, refusal *guestapi.Refusal) {
	info := claim.Status.BootstrapInfo

	if info == nil || info.Identity == nil || info.Identity.Method != v1alpha1.AttestationTPM {
		return false, guestapi.NewTerminalRefusal(http.StatusForbidden, guestapi.OutcomeNotOffered,
			guest.ReasonAttestationRefused, "the machine does not attest with a TPM").WithClaim(claim)
	}

	switch device := info.Identity.Device; {
	case device == nil && info.Identity.AttestedAt != nil:
		// Its key was certified before the claim was restored without its status.
		return false, guestapi.NewTerminalRefusal(http.StatusConflict, guestapi.OutcomeUsed, guest.ReasonAttestationRefused,
			"the machine has already attested: a machine has only one device identity").WithClaim(claim)
	case device == nil:
		return false, nil
	case device.PublicKeySHA256 == devid.Fingerprint(public):
		return true, nil
	default:
		return false, guestapi.NewTerminalRefusal(http.StatusConflict, guestapi.OutcomeUsed, guest.ReasonAttestationRefused,
			"another key was already certified for the machine: a machine has only one device identity").WithClaim(claim)
	}
}

// requireUniqueTPM refuses a TPM that is recorded for another claim. Two machines share a TPM if both were
// cloned from a template that has one; each could then impersonate the other.
func (h *Handler) requireUniqueTPM(
	ctx context.Context, claim *v1alpha1.MachineClaim, device *v1alpha1.DeviceIdentity,
) *guestapi.Refusal {
	var claims v1alpha1.MachineClaimList

	err := h.Client.List(ctx, &claims, client.MatchingFields{IndexEK: device.EKCertificateSHA256})
	if err != nil {
		log.FromContext(ctx).Error(err, "list claims by TPM", "namespace", claim.Namespace, "claim", claim.Name)

		return guestapi.NewTransientRefusal("the operator cannot check the TPM of the machine at the moment: retry later")
	}

	for i := range claims.Items {
		if other := &claims.Items[i]; other.UID != claim.UID {
			return guestapi.NewTerminalRefusal(http.StatusConflict, outcomeSharedTPM, guest.ReasonAttestationRefused,
				fmt.Sprintf("claim %s/%s has the same TPM: remove the TPM from the template that both machines were cloned from",
					other.Namespace, other.Name)).WithClaim(claim)
		}
	}

	return nil
}

// certificateLifetime returns spec.lifecycle.maxLifetime of the claim, or 0 if the claim has no limit. The
// lifetime of the certificate starts with the machine's first request.
func certificateLifetime(claim *v1alpha1.MachineClaim) time.Duration {
	if bounds := claim.Spec.Lifecycle; bounds != nil && bounds.MaxLifetime != nil {
		return bounds.MaxLifetime.Duration
	}

	return 0
}
