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

// DevIDCode returns the code with which the claim's machine authenticates its request for a device identity
// certificate. The code is valid only for this purpose, and only for the first key that is certified for
// the machine.
func DevIDCode(key []byte, namespace, name string, uid types.UID) string {
	return deriveCode(key, "devid", namespace, name, uid)
}

// DevIDPath returns the path, below the operator's URL, of the endpoint that signs the device identity
// certificate of the claim's machine.
func DevIDPath(claim *v1alpha1.MachineClaim) string {
	return fmt.Sprintf("/machines/%s/%s/%s/devid", claim.Namespace, claim.Name, claim.UID)
}

// newDevIDCallback returns the endpoint and the code with which a machine that attests with its TPM
// requests its device identity certificate.
func newDevIDCallback(in Input) *guest.Callback {
	return &guest.Callback{
		URL:      in.Settings.GuestURL + DevIDPath(in.Claim),
		Code:     DevIDCode(in.Settings.ReportKey, in.Claim.Namespace, in.Claim.Name, in.Claim.UID),
		CABundle: in.Settings.caBundle(),
	}
}

// HasTPM reports whether machines of the template have a TPM. Only machines that attest with a TPM have one.
func HasTPM(template *v1alpha1.HypervisorMachineTemplate) bool {
	attestation := template.Spec.Attestation

	return attestation != nil && attestation.Method == v1alpha1.AttestationTPM
}

// checkTPM returns an error of class Configuration if the template uses attestation method tpm and the
// operator's configuration does not support it.
func checkTPM(template *v1alpha1.HypervisorMachineTemplate, settings Settings) error {
	if !HasTPM(template) {
		return nil
	}

	var missing string

	switch {
	case !settings.HasDevIDAuthority:
		missing = "identity.devID, the CA that signs device identity certificates"
	case settings.GuestURL == "":
		missing = "guest.url, from which machines request their certificate"
	case len(settings.ReportKey) == 0:
		missing = "the key from which claim codes are derived"
	default:
		return nil
	}

	return errclass.New(errclass.Configuration, ReasonAttestationUnavailable,
		"use template %s: attestation method %s needs %s: set it in the operator's configuration, or use method %s",
		template.Name, v1alpha1.AttestationTPM, missing, v1alpha1.AttestationJoinToken)
}
