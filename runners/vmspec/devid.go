// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// DevIDCode is what the claim's machine proves with that a device identity is to be
// certified for it. It is good for the one key that is certified first, and for nothing else
// than that: it is of a purpose of its own, as ClaimCode is.
func DevIDCode(key []byte, namespace, name string, uid types.UID) string {
	return code(key, "devid", namespace, name, uid)
}

// DevIDPath is where the claim's machine has its device identity certified, below the
// operator's URL.
func DevIDPath(claim *v1alpha1.MachineClaim) string {
	return fmt.Sprintf("/machines/%s/%s/%s/devid", claim.Namespace, claim.Name, claim.UID)
}

// devID is how a machine that attests by its TPM comes to a device identity.
func devID(in Input) *guest.Callback {
	return &guest.Callback{
		URL:      in.Settings.GuestURL + DevIDPath(in.Claim),
		Code:     DevIDCode(in.Settings.ReportKey, in.Claim.Namespace, in.Claim.Name, in.Claim.UID),
		CABundle: in.Settings.caBundle(),
	}
}

// HasTPM says whether machines of the template have a TPM: those that attest by it.
func HasTPM(template *v1alpha1.HypervisorMachineTemplate) bool {
	attestation := template.Spec.Attestation

	return attestation != nil && attestation.Method == v1alpha1.AttestationTPM
}

// checkTPM refuses method tpm where the operator has not what it takes.
func checkTPM(template *v1alpha1.HypervisorMachineTemplate, settings Settings) error {
	if !HasTPM(template) {
		return nil
	}

	var missing string

	switch {
	case !settings.DevID:
		missing = "identity.devID, the authority that certifies device identities"
	case settings.GuestURL == "":
		missing = "guest.url, where machines ask for their certificate"
	case len(settings.ReportKey) == 0:
		missing = "the key to make claim codes of"
	default:
		return nil
	}

	return errclass.New(errclass.Configuration, ReasonAttestationUnavailable,
		"use template %s: attestation method %s needs %s: set it in the operator's configuration, or use method %s",
		template.Name, v1alpha1.AttestationTPM, missing, v1alpha1.AttestationJoinToken)
}
