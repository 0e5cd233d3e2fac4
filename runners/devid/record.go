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
	// IndexEK finds claims by the endorsement certificate of their machine's TPM.
	IndexEK = "status.bootstrapInfo.identity.device.ekCertificateSHA256"

	// maxWrites bounds the tries of the one write that others get in the way of.
	maxWrites = 8
)

// EKOf gives a claim's value of IndexEK.
func EKOf(obj client.Object) []string {
	claim, ok := obj.(*v1alpha1.MachineClaim)
	if !ok {
		return nil
	}

	if device := deviceOf(claim); device != nil && device.EKCertificateSHA256 != "" {
		return []string{device.EKCertificateSHA256}
	}

	return nil
}

func deviceOf(claim *v1alpha1.MachineClaim) *v1alpha1.DeviceIdentity {
	info := claim.Status.BootstrapInfo
	if info == nil || info.Identity == nil {
		return nil
	}

	return info.Identity.Device
}

// record puts the key on record as the one that is certified for the claim. Of two that try
// only one gets through: the write is of the claim as it was read. first says that it was
// this call's.
func (h *Handler) record(
	ctx context.Context, who guestapi.Caller, asked guest.DevIDRequest,
) (claim *v1alpha1.MachineClaim, first bool, refused *guestapi.Refusal) {
	for try := 1; ; try++ {
		claim, refused := guestapi.Read(ctx, h.Live, who, guest.ReasonAttestationRefused)
		if refused != nil {
			return nil, false, refused
		}

		known, refused := judge(claim, asked.Public)
		if refused != nil || known {
			return claim, false, refused
		}

		device := &v1alpha1.DeviceIdentity{
			PublicKeySHA256: devid.Fingerprint(asked.Public), RequestedAt: metav1.NewMicroTime(h.Clock.Now()),
		}

		if len(asked.EKCertificate) > 0 {
			device.EKCertificateSHA256 = devid.Fingerprint(asked.EKCertificate)

			if refused := h.alone(ctx, claim, device); refused != nil {
				return nil, false, refused
			}
		}

		base := claim.DeepCopy()
		claim.Status.BootstrapInfo.Identity.Device = device

		err := h.Client.Status().Patch(ctx, claim, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))

		switch {
		case err == nil:
			return claim, true, nil
		case apierrors.IsNotFound(err):
			return nil, false, guestapi.Gone(guest.ReasonAttestationRefused)
		case !apierrors.IsConflict(err) || try == maxWrites:
			log.FromContext(ctx).Error(err, "device identity was not written", "namespace", who.Namespace, "claim", who.Name)

			return nil, false, guestapi.Later("the claim cannot be written: try again")
		}
	}
}

// judge tells whether the claim's machine may have the key certified, and whether it is on
// record already. It is pure.
func judge(claim *v1alpha1.MachineClaim, public []byte) (known bool, refused *guestapi.Refusal) {
	info := claim.Status.BootstrapInfo

	if info == nil || info.Identity == nil || info.Identity.Method != v1alpha1.AttestationTPM {
		return false, guestapi.Never(http.StatusForbidden, guestapi.OutcomeNotOffered, guest.ReasonAttestationRefused,
			"the machine does not attest by a TPM").WithClaim(claim)
	}

	switch device := info.Identity.Device; {
	case device == nil:
		return false, nil
	case device.PublicKeySHA256 == devid.Fingerprint(public):
		return true, nil
	default:
		return false, guestapi.Never(http.StatusConflict, guestapi.OutcomeUsed, guest.ReasonAttestationRefused,
			"another key was certified for the machine before: it has one device identity in its life").WithClaim(claim)
	}
}

// alone refuses a TPM that is known as another claim's: both were cloned from a template with
// a TPM, and each could pass for the other.
func (h *Handler) alone(
	ctx context.Context, claim *v1alpha1.MachineClaim, device *v1alpha1.DeviceIdentity,
) *guestapi.Refusal {
	var claims v1alpha1.MachineClaimList

	err := h.Client.List(ctx, &claims, client.MatchingFields{IndexEK: device.EKCertificateSHA256})
	if err != nil {
		log.FromContext(ctx).Error(err, "claims were not listed", "namespace", claim.Namespace, "claim", claim.Name)

		return guestapi.Later("the machine's TPM cannot be looked up at present: try again")
	}

	for i := range claims.Items {
		if other := &claims.Items[i]; other.UID != claim.UID {
			return guestapi.Never(http.StatusConflict, outcomeSharedTPM, guest.ReasonAttestationRefused,
				fmt.Sprintf("the machine's TPM is that of claim %s/%s too: remove the TPM from the template that they were cloned from",
					other.Namespace, other.Name)).WithClaim(claim)
		}
	}

	return nil
}

// lifetime of the certificate: as long as the machine may live, from its first request on.
func lifetime(claim *v1alpha1.MachineClaim) time.Duration {
	if bounds := claim.Spec.Lifecycle; bounds != nil && bounds.MaxLifetime != nil {
		return bounds.MaxLifetime.Duration
	}

	return 0
}
