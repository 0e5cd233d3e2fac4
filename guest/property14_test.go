// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

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

// machineKind is a kind of machine that asks for its credential.
type machineKind struct {
	name string
	team string
	// attested is a machine of the kind that has an identity; nil where it gets none.
	attested *guest.Attested
	machine  *machine
}

// request is what one machine asks a secrets manager for.
type request struct {
	Machine, Auth, Mount, Role, Audience, Engine, Secret, Keys, URL string
}

// secrets are the request as a machine's configuration has it.
func (r request) secrets(s *secretsSite) *api.Secrets {
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

// expect says how a request ends: with a credential, or for a reason.
func (r request) expect(k machineKind) (api.Credential, string) {
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

	held, there := secretContents()[r.Secret]
	if !there || r.Secret == "runners/gone" || r.Keys == "none" {
		return none, api.ReasonSecretMissing
	}

	return pick(held, r)
}

// pick is what a secret's keys come to.
func pick(held map[string]any, r request) (api.Credential, string) {
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
	for name := range secretContents() {
		names = append(names, name)
	}

	return gen.Struct(reflect.TypeFor[request](), map[string]gopter.Gen{
		"Machine": oneOf(machines...),
		"Auth":    oneOf(api.SecretsAuthJWT, api.SecretsAuthCert),
		"Mount":   oneOf("", "", "AUTH", "machines/AUTH", "machines/AUTH", "none"),
		// What is right is taken more often: the rest of the way would hardly be gone.
		"Role":     oneOf("right", "right", "right", "right", "right", "right", "ours", "theirs", "powerless", "unknown", ""),
		"Audience": oneOf("", "", "", "vault", "somebody"),
		"Engine":   oneOf("secret/data/", "plain/"),
		"Secret":   oneOf(names...),
		"Keys":     oneOf("", "", "", "renamed", "none"),
		"URL":      oneOf("", "https://github.com/o"),
	}).Map(func(r request) request {
		if r.Role == "right" {
			r.Role = "ours"
			if strings.HasSuffix(r.Machine, "team-b") {
				r.Role = "theirs"
			}
		}

		if r.Auth == api.SecretsAuthCert && r.Role == "" {
			r.Role = "unknown" // without one it is Vault's to choose among those that fit
		}

		return r
	})
}

// attests has the kind's machine attest, by what its configuration says.
func (k machineKind) attests(t *testing.T) machineKind {
	t.Helper()

	k.attested, k.machine.cfg.SPIFFE = k.machine.attest(t), spiffe() // as in a configuration that was not used yet

	return k
}

// byToken is a machine of a team that attests with a join token.
func (s *secretsSite) byToken(t *testing.T, team string) machineKind {
	t.Helper()

	path := "/vm/" + team + "/ci/7d20"
	k := machineKind{name: "token " + team, team: team, machine: newMachine(t)}
	k.machine.attests(t, s.spire, register(t, s.spire, path, path, 600))
	k.machine.cfg.SPIFFE.SPIFFEID = "spiffe://" + s.spire.TrustDomain + path
	k.machine.cfg.Method, k.machine.cfg.JITConfig = api.MethodExternalSecrets, ""

	return k.attests(t)
}

// byTPM is a machine of team-a that attests by its TPM.
func (s *secretsSite) byTPM(t *testing.T, device string, devices tpm.Devices) machineKind {
	t.Helper()
	registerSelf(t, s.spire)

	k := machineKind{name: "tpm", team: "team-a", machine: newMachine(t)}
	k.machine.hasTPM(t, s.spire, device, tpm.StartCertifier(t, devices, selfUID, claimCode))
	k.machine.cfg.Method, k.machine.cfg.JITConfig = api.MethodExternalSecrets, ""

	return k.attests(t)
}

// refused is a machine whose join token is worth nothing.
func (s *secretsSite) refused(t *testing.T) machineKind {
	t.Helper()

	k := machineKind{name: "refused", team: "team-a", machine: newMachine(t)}
	k.machine.attests(t, s.spire, "0c1d7a6e-unknown")
	k.machine.cfg.Method, k.machine.cfg.JITConfig = api.MethodExternalSecrets, ""

	return k
}

// Feature: hyperfleet-operator, Property 14: Generic Attestation and Credential Management
//
// Whatever way a machine attests: with a valid identity it logs in to the secrets manager and
// gets just what its identity may read there, and otherwise nothing, with the reason. Nobody
// keeps a login, and no credential gets into a log.
func TestPropertyAttestationAndCredentialsSPIRE(t *testing.T) {
	t.Parallel()

	authority, devices := tpm.NewAuthority(t), tpm.NewDevID(t)
	device := authority.NewTPM(t).Path
	s := newSecretsSite(t, spire.WithPlugin(authority.AttestorConfig(devices)))
	kinds := map[string]machineKind{}

	for _, k := range []machineKind{s.byToken(t, "team-a"), s.byToken(t, "team-b"), s.byTPM(t, device, devices), s.refused(t)} {
		kinds[k.name] = k
	}

	names := []string{"token team-a", "token team-a", "token team-b", "token team-b", "tpm", "tpm", "tpm", "refused"}
	handed := 0
	one := func(r request) string {
		kind := kinds[r.Machine]
		want, reason := r.expect(kind)

		got, err := kind.ask(t, r.secrets(s), r.URL)
		if err == nil {
			handed++
		}

		if has, _ := guest.Reason(err); has != reason {
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

	// What is surely allowed, by either method.
	for name, role := range map[string]string{"token team-a": "ours", "token team-b": "theirs", "tpm": "ours"} {
		for _, auth := range []string{api.SecretsAuthJWT, api.SecretsAuthCert} {
			r := request{Machine: name, Auth: auth, Role: role, Engine: "secret/data/", Secret: "runners/token", URL: "https://github.com/o"}

			if text := one(r); text != "" {
				t.Errorf("%+v: %s", r, text)
			}
		}
	}

	if handed != 6 {
		t.Errorf("%d of 6 machines got their credential", handed)
	}

	property.Check(t, "what an identity may read, and nothing else", property.Options{Brief: 40}, prop.ForAll(one, genRequest(names)))

	left, err := s.vault.Client.Logical().ListWithContext(t.Context(), "auth/token/accessors")
	if err != nil || len(left.Data["keys"].([]any)) != 1 {
		t.Errorf("tokens left beside root's: %v, %v", left, err)
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

// ask has the machine get its credential; one that has no identity attests first.
func (k machineKind) ask(t *testing.T, from *api.Secrets, url string) (api.Credential, error) {
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
