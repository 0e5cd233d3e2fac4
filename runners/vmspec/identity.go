// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"cmp"
	"strings"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/inputbound"
	"github.com/hyperfleet/hyperfleet/workload"
)

// Reasons for which a template or a claim gets no machine.
const (
	ReasonAttestationUnavailable     = "AttestationUnavailable"
	ReasonBootstrapMethodUnavailable = "BootstrapMethodUnavailable"
)

// IdentityOf is whom the claim's machine proves to be.
func IdentityOf(claim *v1alpha1.MachineClaim) identity.ID {
	return identity.ID{Namespace: claim.Namespace, Name: claim.Name, UID: string(claim.UID)}
}

// Identity is what goes into the status of a claim of the template before anything is
// registered for its machine; nil where the template has no attestation.
func Identity(
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

// Attests says whether the claim's machine proves who it is.
func Attests(claim *v1alpha1.MachineClaim) bool {
	info := claim.Status.BootstrapInfo

	return info != nil && info.Identity != nil
}

// Registration is the claim's machine as the identity provider is told of it.
func Registration(claim *v1alpha1.MachineClaim, template *v1alpha1.HypervisorMachineTemplate) identity.Machine {
	out := identity.Machine{
		ID: IdentityOf(claim), Template: template.Name, Workload: claim.Spec.WorkloadConfig.Type,
	}
	if Attests(claim) {
		out.Method = claim.Status.BootstrapInfo.Identity.Method
	}

	if claim.Spec.RunnerPoolRef != nil {
		out.Pool = claim.Spec.RunnerPoolRef.Name
	}

	if a := template.Spec.Attestation; a != nil && a.Config != nil && a.Config.JoinTokenTTL != nil {
		out.TTL = a.Config.JoinTokenTTL.Duration
	}

	return out
}

// CallbackAudience is that of the JWT-SVIDs by which machines get their credential from the
// operator: one that was made for another operator, or for a secrets manager, is of no use.
func CallbackAudience(settings Settings) string { return "hyperfleet/" + settings.OperatorUID }

// Proof is what the claim's machine has to bring for its credential.
func Proof(claim *v1alpha1.MachineClaim) string {
	if Attests(claim) {
		return v1alpha1.ProofSVID
	}

	return v1alpha1.ProofClaimCode
}

// ProofOf is what the machine has to bring that was offered a credential; a claim code where
// the offer is older than other proofs.
func ProofOf(handover *v1alpha1.CredentialHandover) string {
	return cmp.Or(handover.Proof, v1alpha1.ProofClaimCode)
}

// spiffe is what the machine attests with.
func spiffe(in Input) *guest.SPIFFE {
	if !Attests(in.Claim) {
		return nil
	}

	own := in.Claim.Status.BootstrapInfo.Identity
	out := &guest.SPIFFE{
		Enabled: true, Method: own.Method, SPIFFEID: own.SPIFFEID, TrustDomain: in.Settings.TrustDomain,
		ServerAddress: in.Attestation.ServerAddress, TrustBundle: in.Attestation.TrustBundle,
	}

	switch own.Method {
	case v1alpha1.AttestationTPM:
		out.TPMDevice, out.DevID = tpmDevice(in.Template), devID(in)
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

// secrets is where the machine gets its credential with method external-secrets.
func secrets(in Input) *guest.Secrets {
	config := in.Template.Spec.Bootstrap.Config
	if config == nil || config.ExternalSecrets == nil {
		return nil
	}

	where, pool := config.ExternalSecrets, ""
	if in.Claim.Spec.RunnerPoolRef != nil {
		pool = in.Claim.Spec.RunnerPoolRef.Name
	}

	path := strings.NewReplacer(
		"{namespace}", in.Claim.Namespace, "{pool}", pool, "{claim}", in.Claim.Name, "{uid}", string(in.Claim.UID),
	).Replace(where.Path)

	return &guest.Secrets{
		Manager: cmp.Or(where.Manager, guest.SecretsVault), Address: where.Address, CABundle: where.CABundle,
		Namespace: where.Namespace, Auth: cmp.Or(where.Auth, guest.SecretsAuthJWT), AuthMount: where.AuthMount,
		Role: where.Role, Audience: where.Audience, Path: path, Keys: where.Keys,
	}
}

// checkAttestation refuses attestations that the operator has not what it takes for.
func checkAttestation(template *v1alpha1.HypervisorMachineTemplate, settings Settings) error {
	if template.Spec.Attestation == nil {
		return nil
	}

	if settings.TrustDomain != "" {
		return checkTPM(template, settings)
	}

	return errclass.New(errclass.Configuration, ReasonAttestationUnavailable,
		"use template %s: spec.attestation needs a SPIRE server: set identity.spire in the operator's configuration, or leave it out",
		template.Name)
}

// checkSecrets refuses what method external-secrets cannot do.
func checkSecrets(template *v1alpha1.HypervisorMachineTemplate) error {
	config := template.Spec.Bootstrap.Config

	switch {
	case config == nil || config.ExternalSecrets == nil:
		return errclass.New(errclass.Configuration, "ExternalSecretsMissing",
			"use template %s: bootstrap method external-secrets needs spec.bootstrap.config.externalSecrets", template.Name)
	case template.Spec.Attestation == nil:
		return errclass.New(errclass.Configuration, ReasonAttestationUnavailable,
			"use template %s: bootstrap method external-secrets needs spec.attestation: machines log in with their identity",
			template.Name)
	case config.Buildkite != nil:
		return errclass.New(errclass.Configuration, ReasonBootstrapMethodUnavailable,
			"use template %s: bootstrap method external-secrets is not for Buildkite, which gives each job a credential of its own: "+
				"use callback", template.Name)
	case config.ExternalSecrets.CABundle == "":
		return nil
	}

	if _, err := inputbound.Authorities([]byte(config.ExternalSecrets.CABundle), nil); err != nil {
		return errclass.New(errclass.Configuration, "ExternalSecretsInvalid",
			"use template %s: read spec.bootstrap.config.externalSecrets.caBundle: %w", template.Name, err)
	}

	return nil
}

// CheckPlatform refuses a platform that the template's bootstrap method is not for.
func CheckPlatform(template *v1alpha1.HypervisorMachineTemplate, runner workload.RunnerSpec) error {
	if template.Spec.Bootstrap.Method != v1alpha1.BootstrapExternalSecrets || !runner.Binds {
		return nil
	}

	return errclass.New(errclass.Configuration, ReasonBootstrapMethodUnavailable,
		"make a machine of template %s: bootstrap method external-secrets is not for %s, whose machines are each made for one job: "+
			"use a template with method callback", template.Name, runner.Platform)
}
