// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/tpm"
)

// machineKind is a kind of machine that requests its credential.
type machineKind struct {
	name string
	team string
	// attested is a machine of this kind with an identity, or nil if its attestation fails.
	attested *guest.Attested
	machine  *machine
}

// credentialRequest is one machine's request to a secrets manager.
type credentialRequest struct {
	Machine, Auth, Mount, Role, Audience, Engine, Secret, Keys, URL string
}

// newSecrets returns the request as a machine's configuration.
func (r credentialRequest) newSecrets(s *secretsFixture) *api.Secrets {
	out := &api.Secrets{
		Manager: api.SecretsVault, Address: s.vault.Address, CABundle: s.vault.CABundle, Auth: r.Auth, Role: r.Role,
		AuthMount: strings.ReplaceAll(r.Mount, "AUTH", r.Auth), Audience: r.Audience, Path: r.Engine + r.Secret,
	}

	switch r.Keys {
	case "renamed":
		out.Keys = map[string]string{"runner_token": "TOKEN", "registration_url": "URL"}
	case "none":
		out.Keys = map[string]string{"jit_config": "NONE"}
	}

	return out
}

// expectResult returns the expected credential, or the expected reason.
func (r credentialRequest) expectResult(k machineKind) (api.Credential, string) {
	var none api.Credential

	switch {
	case k.attested == nil:
		return none, api.ReasonAttestationRefused
	case r.Role == "" && r.Auth == api.SecretsAuthJWT:
		return none, api.ReasonConfigInvalid
	case r.Mount == "none", r.Role != "ours" && r.Role != "theirs", (r.Role == "ours") != (k.team == "team-a"):
		return none, api.ReasonSecretsRefused
	case r.Auth == api.SecretsAuthJWT && r.Audience == "somebody":
		return none, api.ReasonSecretsRefused
	case !strings.HasPrefix(r.Secret, "runners/"):
		return none, api.ReasonSecretsRefused
	}

	held, there := listSecrets()[r.Secret]
	if !there || r.Secret == "runners/gone" || r.Keys == "none" {
		return none, api.ReasonSecretMissing
	}

	return expectCredential(held, r)
}

// expectCredential returns the credential that the content of a secret results in.
func expectCredential(held map[string]any, r credentialRequest) (api.Credential, string) {
	token, address := "runner_token", "registration_url"
	if r.Keys == "renamed" {
		token, address = "TOKEN", "URL"
	}

	text := func(key string) string {
		value, _ := held[key].(string)

		return strings.TrimSpace(value)
	}
	out := api.Credential{JITConfig: text("jit_config"), RunnerToken: text(token), RegistrationURL: text(address)}

	if r.Keys == "renamed" && (out.RunnerToken == "" || out.RegistrationURL == "") || out.JITConfig+out.RunnerToken == "" {
		return api.Credential{}, api.ReasonSecretMissing
	}

	if out.RegistrationURL == "" {
		out.RegistrationURL = r.URL
	}

	if out.JITConfig == "" && out.RegistrationURL == "" {
		return api.Credential{}, api.ReasonSecretMissing
	}

	return out, ""
}

func genRequest(machines []string) gopter.Gen {
	oneOf := func(values ...string) gopter.Gen {
		all := make([]any, len(values))
		for i, value := range values {
			all[i] = value
		}

		return gen.OneConstOf(all...)
	}

	names := []string{"runners/none", "runners/token", "runners/token", "runners/renamed", "runners/renamed"}
	for name := range listSecrets() {
		names = append(names, name)
	}

	return gen.Struct(reflect.TypeFor[credentialRequest](), map[string]gopter.Gen{
		"Machine": oneOf(machines...),
		"Auth":    oneOf(api.SecretsAuthJWT, api.SecretsAuthCert),
		"Mount":   oneOf("", "", "AUTH", "machines/AUTH", "machines/AUTH", "none"),
		// Valid values are more frequent, because otherwise few requests would get far.
		"Role":     oneOf("right", "right", "right", "right", "right", "right", "ours", "theirs", "powerless", "unknown", ""),
		"Audience": oneOf("", "", "", "vault", "somebody"),
		"Engine":   oneOf("secret/data/", "plain/"),
		"Secret":   oneOf(names...),
		"Keys":     oneOf("", "", "", "renamed", "none"),
		"URL":      oneOf("", "https://github.com/o"),
	}).Map(func(r credentialRequest) credentialRequest {
		if r.Role == "right" {
			r.Role = "ours"
			if strings.HasSuffix(r.Machine, "team-b") {
				r.Role = "theirs"
			}
		}

		if r.Auth == api.SecretsAuthCert && r.Role == "" {
			r.Role = "unknown" // without a role, Vault chooses a matching one
		}

		return r
	})
}

// attest attests the machine with its configuration.
func (k machineKind) attest(t *testing.T) machineKind {
	t.Helper()

	k.attested, k.machine.cfg.SPIFFE = k.machine.attest(t), newSPIFFE() // as in an unused configuration

	return k
}

// newTokenMachine returns a machine of a team that attests with a join token.
func (s *secretsFixture) newTokenMachine(t *testing.T, team string) machineKind {
	t.Helper()

	path := "/vm/" + team + "/ci/7d20"
	k := machineKind{name: "token " + team, team: team, machine: newMachine(t)}
	k.machine.prepareAttestation(t, s.spire, registerMachine(t, s.spire, path, path, 600))
	k.machine.cfg.SPIFFE.SPIFFEID = "spiffe://" + s.spire.TrustDomain + path
	k.machine.cfg.Method, k.machine.cfg.JITConfig = api.MethodExternalSecrets, ""

	return k.attest(t)
}

// newTPMMachine returns a machine of team-a that attests with its TPM.
func (s *secretsFixture) newTPMMachine(t *testing.T, device string, devices tpm.Devices) machineKind {
	t.Helper()
	registerTPMMachine(t, s.spire)

	k := machineKind{name: "tpm", team: "team-a", machine: newMachine(t)}
	k.machine.prepareTPM(t, s.spire, device, tpm.StartCertifier(t, devices, machineUID, claimCode))
	k.machine.cfg.Method, k.machine.cfg.JITConfig = api.MethodExternalSecrets, ""

	return k.attest(t)
}

// newRefusedMachine returns a machine with an unknown join token.
func (s *secretsFixture) newRefusedMachine(t *testing.T) machineKind {
	t.Helper()

	k := machineKind{name: "refused", team: "team-a", machine: newMachine(t)}
	k.machine.prepareAttestation(t, s.spire, "0c1d7a6e-unknown")
	k.machine.cfg.Method, k.machine.cfg.JITConfig = api.MethodExternalSecrets, ""

	return k
}

// Feature: hyperfleet-operator, Property 14: Generic Attestation and Credential Management
//
// A machine with a valid identity logs in to the secrets manager, whatever its attestation method, and gets
// exactly what its identity may read. Otherwise it gets nothing, and the reason. No login remains, and no log
// contains a credential.
func TestPropertyAttestationAndCredentialsSPIRE(t *testing.T) {
	t.Parallel()

	authority, devices := tpm.NewAuthority(t), tpm.NewDevID(t)
	device := authority.NewTPM(t).Path
	s := newSecretsFixture(t, spire.WithPlugin(authority.AttestorConfig(devices)))
	kinds := map[string]machineKind{}

	for _, k := range []machineKind{s.newTokenMachine(t, "team-a"), s.newTokenMachine(t, "team-b"), s.newTPMMachine(t, device, devices), s.newRefusedMachine(t)} {
		kinds[k.name] = k
	}

	names := []string{"token team-a", "token team-a", "token team-b", "token team-b", "tpm", "tpm", "tpm", "refused"}
	fetched := 0
	run := func(r credentialRequest) string {
		kind := kinds[r.Machine]
		want, reason := r.expectResult(kind)

		got, err := kind.requestCredential(t, r.newSecrets(s), r.URL)
		if err == nil {
			fetched++
		}

		if has, _ := guest.GetReason(err); has != reason {
			return fmt.Sprintf("ended with %v, want reason %q", err, reason)
		}

		if diff := cmp.Diff(want, got); err == nil && diff != "" {
			return "credential (-want +got):\n" + diff
		}

		if text := fmt.Sprint(err) + kind.machine.log.String(); containsSecret(text) {
			return "a credential is in " + text
		}

		return ""
	}

	// Requests that must succeed, with either method.
	for name, role := range map[string]string{"token team-a": "ours", "token team-b": "theirs", "tpm": "ours"} {
		for _, auth := range []string{api.SecretsAuthJWT, api.SecretsAuthCert} {
			r := credentialRequest{Machine: name, Auth: auth, Role: role, Engine: "secret/data/", Secret: "runners/token", URL: "https://github.com/o"}

			if text := run(r); text != "" {
				t.Errorf("%+v: %s", r, text)
			}
		}
	}

	if fetched != 6 {
		t.Errorf("%d of 6 machines got their credential", fetched)
	}

	property.Check(t, "what an identity may read, and nothing else", property.Options{Brief: 40}, prop.ForAll(run, genRequest(names)))

	left, err := s.vault.Client.Logical().ListWithContext(t.Context(), "auth/token/accessors")
	if err != nil || len(left.Data["keys"].([]any)) != 1 {
		t.Errorf("tokens other than the root token remain: %v, %v", left, err)
	}
}

func containsSecret(text string) bool {
	for _, secret := range []string{runnerToken, jitBlob, "hvs.", "eyJ"} {
		if strings.Contains(text, secret) {
			return true
		}
	}

	return false
}

// requestCredential fetches the machine's credential. A machine without an identity attests first.
func (k machineKind) requestCredential(t *testing.T, from *api.Secrets, url string) (api.Credential, error) {
	t.Helper()

	cfg := k.machine.cfg
	spiffe := *cfg.SPIFFE
	cfg.SPIFFE = &spiffe
	cfg.Secrets, cfg.RegistrationURL = from, url

	if k.attested != nil {
		return k.attested.Fetch(t.Context(), cfg)
	}

	attested, err := guest.Attest(t.Context(), k.machine.options(), &cfg)
	if err != nil {
		return api.Credential{}, err
	}

	defer attested.Close()

	return attested.Fetch(t.Context(), cfg)
}
