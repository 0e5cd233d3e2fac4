// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"cmp"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/bounds"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Reasons of errors because of which no machine is created for a template or a claim.
const (
	ReasonAttestationUnavailable     = "AttestationUnavailable"
	ReasonBootstrapMethodUnavailable = "BootstrapMethodUnavailable"
)

// IdentityOf returns the identity of the claim's machine.
func IdentityOf(claim *v1alpha1.MachineClaim) identity.ID {
	return identity.ID{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}
}

// NewMachineIdentity returns the identity that is recorded in the claim's status before the machine is
// registered with the identity provider. It returns nil if the template has no attestation.
func NewMachineIdentity(
	claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate, settings Settings,
) *v1alpha1.MachineIdentity {
	attestation := template.Spec.Attestation
	if attestation == nil {
		return nil
	}

	return &v1alpha1.MachineIdentity{
		SPIFFEID: IdentityOf(claim).URI(settings.TrustDomain),
		Method:   cmp.Or(attestation.Method, v1alpha1.AttestationJoinToken),
	}
}

// HasIdentity reports whether the status of the claim holds an identity, that is, whether its machine must
// attest.
func HasIdentity(claim *v1alpha1.MachineClaim) bool {
	info := claim.Status.BootstrapInfo

	return info != nil && info.Identity != nil
}

// NewRegistration returns the registration of the claim's machine with the identity provider.
func NewRegistration(claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate) identity.Machine {
	out := identity.Machine{
		ID: IdentityOf(claim), Template: template.Name, Pool: claim.PoolName(), Workload: claim.Spec.WorkloadConfig.Type,
	}
	if HasIdentity(claim) {
		out.Method = claim.Status.BootstrapInfo.Identity.Method
	}

	if a := template.Spec.Attestation; a != nil && a.Config != nil && a.Config.JoinTokenTTL != nil {
		out.TTL = a.Config.JoinTokenTTL.Duration
	}

	return out
}

// CallbackAudience returns the audience of the JWT-SVIDs with which machines request their credential from
// the operator. The operator refuses a JWT-SVID for another audience, such as another operator or a secrets
// manager.
func CallbackAudience(settings Settings) string { return "hyperfleet/" + settings.OperatorUID }

// RequiredProof returns the proof with which the claim's machine must request its credential.
func RequiredProof(claim *v1alpha1.MachineClaim) string {
	if HasIdentity(claim) {
		return v1alpha1.ProofSVID
	}

	return v1alpha1.ProofClaimCode
}

// OfferedProof returns the proof that a recorded handover requires. Records of older operators have no
// proof and mean a claim code.
func OfferedProof(handover *v1alpha1.CredentialHandover) string {
	return cmp.Or(handover.Proof, v1alpha1.ProofClaimCode)
}

// newSPIFFE returns the attestation settings of the machine, or nil if the machine does not attest.
func newSPIFFE(in Input) *guest.SPIFFE {
	if !HasIdentity(in.Claim) {
		return nil
	}

	machineIdentity := in.Claim.Status.BootstrapInfo.Identity
	out := &guest.SPIFFE{
		Enabled: true, Method: machineIdentity.Method, SPIFFEID: machineIdentity.SPIFFEID, TrustDomain: in.Settings.TrustDomain,
		ServerAddress: in.Attestation.ServerAddress, TrustBundle: in.Attestation.TrustBundle,
	}

	switch machineIdentity.Method {
	case v1alpha1.AttestationTPM:
		out.TPMDevice, out.DevID = tpmDevice(in.Template), newDevIDCallback(in)
	default:
		out.JoinToken = in.Attestation.JoinToken
	}

	return out
}

func tpmDevice(template *v1alpha1.HypervisorMachineTemplate) string {
	if a := template.Spec.Attestation; a != nil && a.Config != nil {
		return a.Config.TPMDevice
	}

	return ""
}

// newSecretsConfig returns the guest's configuration of the secrets manager from which the machine reads its credential
// with bootstrap method external-secrets. It replaces the placeholders in the path. It returns nil if the template has
// no externalSecrets.
func newSecretsConfig(in Input) *guest.Secrets {
	config := in.Template.Spec.Bootstrap.Config
	if config == nil || config.ExternalSecrets == nil {
		return nil
	}

	external := config.ExternalSecrets

	path := strings.NewReplacer(
		"{namespace}", in.Claim.Namespace, "{pool}", in.Claim.PoolName(), "{claim}", in.Claim.Name, "{uid}", string(in.Claim.UID),
	).Replace(external.Path)

	return &guest.Secrets{
		Manager: cmp.Or(external.Manager, guest.SecretsVault), Address: external.Address, CABundle: external.CABundle,
		Namespace: external.Namespace, Auth: cmp.Or(external.Auth, guest.SecretsAuthJWT), AuthMount: external.AuthMount,
		Role: external.Role, Audience: external.Audience, Path: path, Keys: external.Keys,
	}
}

// checkAttestation returns an error if the template uses attestation and the operator's configuration does
// not support it.
func checkAttestation(template *v1alpha1.HypervisorMachineTemplate, settings Settings) error {
	if template.Spec.Attestation == nil {
		return nil
	}

	if settings.TrustDomain != "" {
		return checkTPM(template, settings)
	}

	return errclass.New(errclass.Configuration, ReasonAttestationUnavailable,
		"use template %s: spec.attestation needs a SPIRE server: set identity.spire in the operator's configuration, "+
			"or remove spec.attestation",
		template.Name)
}

// checkSecrets checks that the template can use bootstrap method external-secrets.
func checkSecrets(template *v1alpha1.HypervisorMachineTemplate) error {
	config := template.Spec.Bootstrap.Config

	switch {
	case config == nil || config.ExternalSecrets == nil:
		return errclass.New(errclass.Configuration, "ExternalSecretsMissing",
			"use template %s: bootstrap method external-secrets needs spec.bootstrap.config.externalSecrets", template.Name)
	case template.Spec.Attestation == nil:
		return errclass.New(errclass.Configuration, ReasonAttestationUnavailable,
			"use template %s: bootstrap method external-secrets needs spec.attestation, because machines log in with their identity",
			template.Name)
	case config.Buildkite != nil:
		return errclass.New(errclass.Configuration, ReasonBootstrapMethodUnavailable,
			"use template %s: bootstrap method external-secrets does not support Buildkite, which issues one credential per job: "+
				"use method callback", template.Name)
	case config.ExternalSecrets.CABundle == "":
		return nil
	}

	if _, err := bounds.ParseCABundle([]byte(config.ExternalSecrets.CABundle), nil); err != nil {
		return errclass.New(errclass.Configuration, "ExternalSecretsInvalid",
			"use template %s: parse spec.bootstrap.config.externalSecrets.caBundle: %w", template.Name, err)
	}

	return nil
}

// CheckPlatform returns an error if the template's bootstrap method does not support the CI platform of the
// runner.
func CheckPlatform(template *v1alpha1.HypervisorMachineTemplate, runner workload.RunnerSpec) error {
	if template.Spec.Bootstrap.Method != v1alpha1.BootstrapExternalSecrets || !runner.NeedsJob {
		return nil
	}

	return errclass.New(errclass.Configuration, ReasonBootstrapMethodUnavailable,
		"create machine from template %s: bootstrap method external-secrets does not support %s, "+
			"which binds each machine to one job: use a template with method callback", template.Name, runner.Platform)
}
