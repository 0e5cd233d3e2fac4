// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package guest_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spiffe/go-spiffe/v2/bundle/jwtbundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"
	"github.com/spiffe/go-spiffe/v2/svid/jwtsvid"

	api "github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/guest"
	"github.com/hyperfleet/hyperfleet/test/spire"
	"github.com/hyperfleet/hyperfleet/test/vault"
)

// secretsFixture is a SPIRE server and a Vault that trusts it. Machines of team-a may read secrets below
// runners/.
type secretsFixture struct {
	spire *spire.Server
	vault *vault.Server
}

func newSecretsFixture(t *testing.T, opts ...spire.Option) *secretsFixture {
	t.Helper()

	s := &secretsFixture{spire: spire.Start(t, opts...), vault: vault.Start(t)}
	ours := "spiffe://" + s.spire.TrustDomain + "/vm/team-a/*"
	theirs := "spiffe://" + s.spire.TrustDomain + "/vm/team-b/*"
	keys, bundle := vault.ServeJWKS(t, func() []byte { return s.spire.JWKS(t) }), s.spire.Bundle(t)

	s.vault.MountKV(t, "secret", 2)
	s.vault.MountKV(t, "plain", 1)
	s.vault.WritePolicy(t, "runners", `path "secret/data/runners/*" { capabilities = ["read"] }
path "plain/runners/*" { capabilities = ["read"] }`)

	for _, mount := range []string{"jwt", "machines/jwt"} {
		s.vault.EnableJWT(t, mount, keys, spire.JWTIssuer)
		s.vault.WriteJWTRole(t, mount, "ours", "vault", ours, "runners")
		s.vault.WriteJWTRole(t, mount, "theirs", "vault", theirs, "runners")
		s.vault.WriteJWTRole(t, mount, "powerless", "vault", ours)
	}

	for _, mount := range []string{"cert", "machines/cert"} {
		s.vault.EnableCert(t, mount)
		s.vault.WriteCertRole(t, mount, "ours", bundle, ours, "runners")
		s.vault.WriteCertRole(t, mount, "theirs", bundle, theirs, "runners")
		s.vault.WriteCertRole(t, mount, "powerless", bundle, ours)
	}

	for name, data := range listSecrets() {
		s.vault.WriteKV(t, "secret", name, data)
		s.vault.Write(t, "plain/"+name, data)
	}

	s.vault.Delete(t, "secret/data/runners/gone")
	s.vault.Delete(t, "plain/runners/gone")

	return s
}

// listSecrets returns the contents of the secrets engines by path.
func listSecrets() map[string]map[string]any {
	const address = "https://github.com/o"

	return map[string]map[string]any{
		"runners/token":   {"runner_token": runnerToken, "registration_url": address},
		"runners/jit":     {"jit_config": jitBlob, "other": "x"},
		"runners/renamed": {"TOKEN": runnerToken + "\n", "URL": address},
		"runners/bare":    {"runner_token": runnerToken},
		"runners/number":  {"runner_token": 5},
		"runners/nothing": {"other": runnerToken},
		"runners/gone":    {"runner_token": runnerToken},
		"elsewhere/token": {"runner_token": runnerToken},
	}
}

// newAttestedMachine returns an attested machine of team-a.
func (s *secretsFixture) newAttestedMachine(t *testing.T) (*machine, *guest.Attested) {
	t.Helper()

	m := newMachine(t)
	m.prepareAttestation(t, s.spire, registerMachine(t, s.spire, machineID, machineID, 600))
	m.cfg.Method, m.cfg.JITConfig = api.MethodExternalSecrets, ""

	attested := m.attest(t)
	// The machine's later configurations have a used token.
	m.cfg.SPIFFE.JoinToken = "used"

	return m, attested
}

// newSecrets returns a configuration for the machine's credential.
func (s *secretsFixture) newSecrets(change func(*api.Secrets)) *api.Secrets {
	out := &api.Secrets{
		Manager: api.SecretsVault, Address: s.vault.Address, CABundle: s.vault.CABundle, Auth: api.SecretsAuthJWT, Role: "ours",
		Path: "secret/data/runners/token",
	}
	if change != nil {
		change(out)
	}

	return out
}

// TestCredentialFromVaultSPIRE has one case for each result of a request to the secrets manager.
func TestCredentialFromVaultSPIRE(t *testing.T) { //nolint:tparallel // one machine runs the cases one after the other
	t.Parallel()

	s := newSecretsFixture(t)
	m, attested := s.newAttestedMachine(t)

	for name, tc := range map[string]struct {
		change  func(*api.Secrets)
		url     string // registration_url of the configuration
		pauses  []int
		reason  string
		message string
	}{
		"by its JWT-SVID":         {},
		"by its certificate":      {change: func(c *api.Secrets) { c.Auth = api.SecretsAuthCert }},
		"by whatever role it has": {change: func(c *api.Secrets) { c.Auth, c.Role = api.SecretsAuthCert, "" }},
		"by other keys": {
			change: func(c *api.Secrets) {
				c.Path, c.Keys = "secret/data/runners/renamed", map[string]string{"runner_token": "TOKEN", "registration_url": "URL"}
			},
		},
		"with an address that is no secret": {
			change: func(c *api.Secrets) { c.Path = "secret/data/runners/bare" }, url: "https://github.com/o",
		},
		"without an address": {
			change: func(c *api.Secrets) { c.Path = "secret/data/runners/bare" },
			reason: api.ReasonSecretMissing, message: "secret secret/data/runners/bare: registration_url is missing",
		},
		"a role of another team": {
			change: func(c *api.Secrets) { c.Role = "theirs" }, reason: api.ReasonSecretsRefused, message: `log in by jwt as role "theirs"`,
		},
		"a certificate role of another team": {
			change: func(c *api.Secrets) { c.Auth, c.Role = api.SecretsAuthCert, "theirs" },
			reason: api.ReasonSecretsRefused, message: `log in by cert as role "theirs"`,
		},
		"a role without permissions": {
			change: func(c *api.Secrets) { c.Role = "powerless" }, reason: api.ReasonSecretsRefused, message: "403",
		},
		"another audience": {
			change: func(c *api.Secrets) { c.Audience = "somebody" }, reason: api.ReasonSecretsRefused, message: "audience",
		},
		"a method that is not mounted": {
			change: func(c *api.Secrets) { c.AuthMount = "none" }, reason: api.ReasonSecretsRefused, message: "log in by none",
		},
		"a secret of another team": {
			change: func(c *api.Secrets) { c.Path = "secret/data/elsewhere/token" },
			reason: api.ReasonSecretsRefused, message: "read secret/data/elsewhere/token: the secrets manager responded 403",
		},
		"no secret": {
			change: func(c *api.Secrets) { c.Path = "secret/data/runners/none" },
			reason: api.ReasonSecretMissing, message: "there is no secret at secret/data/runners/none",
		},
		"a secret that was deleted": {
			change: func(c *api.Secrets) { c.Path = "secret/data/runners/gone" }, reason: api.ReasonSecretMissing, message: "was deleted",
		},
		"no key of a credential": {
			change: func(c *api.Secrets) { c.Path = "secret/data/runners/nothing" },
			reason: api.ReasonSecretMissing, message: `has neither key "jit_config" nor "runner_token"`,
		},
		"no key of that name": {
			change: func(c *api.Secrets) { c.Keys = map[string]string{"runner_token": "RUNNER"} },
			reason: api.ReasonSecretMissing, message: `secret secret/data/runners/token has no key "RUNNER"`,
		},
		"a key whose value is not text": {
			change: func(c *api.Secrets) { c.Path = "secret/data/runners/number" }, reason: api.ReasonSecretMissing, message: "is empty or not a string",
		},
		"unreachable": {
			change: func(c *api.Secrets) { c.Address = "https://127.0.0.1:1" },
			pauses: []int{1, 2, 4, 8, 16, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30, 30},
			reason: api.ReasonSecretsUnavailable, message: "https://127.0.0.1:1 returned no secret within 10m0s",
		},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := m.cfg
			cfg.RegistrationURL, cfg.Secrets = tc.url, s.newSecrets(tc.change)

			type answer struct {
				credential api.Credential
				err        error
			}

			answers := make(chan answer, 1)

			go func() {
				credential, err := attested.Fetch(t.Context(), cfg)
				answers <- answer{credential, err}
			}()

			for _, seconds := range tc.pauses {
				m.clock.waitAndFire(t, time.Duration(seconds)*time.Second)
			}

			got := <-answers
			if tc.reason == "" {
				want := api.Credential{RunnerToken: runnerToken, RegistrationURL: "https://github.com/o"}
				if diff := cmp.Diff(want, got.credential); got.err != nil || diff != "" {
					t.Errorf("%v (-want +got):\n%s", got.err, diff)
				}

				return
			}

			if reason, _ := guest.GetReason(got.err); reason != tc.reason || !strings.Contains(got.err.Error(), tc.message) {
				t.Errorf("ended with %v; want %s, %q", got.err, tc.reason, tc.message)
			}
		})
	}

	// Each login token is revoked. Only the root token remains.
	if left, err := s.vault.Client.Logical().ListWithContext(t.Context(), "auth/token/accessors"); err != nil || len(left.Data["keys"].([]any)) != 1 {
		t.Errorf("tokens remain: %v, %v", left, err)
	}

	if log := m.log.String(); strings.Contains(log, runnerToken) || strings.Contains(log, "eyJ") || strings.Contains(log, "hvs.") {
		t.Errorf("a credential is in the log:\n%s", log)
	}
}

// TestMachineWithASecretsManagerSPIRE runs complete lifecycles of machines.
func TestMachineWithASecretsManagerSPIRE(t *testing.T) {
	t.Parallel()

	s := newSecretsFixture(t)

	for name, tc := range map[string]struct {
		change  func(*api.Secrets)
		reason  string
		message string
	}{
		"a secret": {
			change: func(c *api.Secrets) { c.Auth, c.Path = api.SecretsAuthCert, "plain/runners/jit" }, reason: api.ReasonJobDone,
		},
		"no secret": {
			change: func(c *api.Secrets) { c.Path = "plain/runners/none" }, reason: api.ReasonSecretMissing, message: "plain/runners/none",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			path := "/vm/team-a/ci-1/" + strings.ReplaceAll(name, " ", "-")
			m := newMachine(t)
			m.prepareAttestation(t, s.spire, registerMachine(t, s.spire, path, path, 600))
			m.cfg.SPIFFE.SPIFFEID = "spiffe://" + s.spire.TrustDomain + path
			m.cfg.Method, m.cfg.JITConfig, m.cfg.Secrets = api.MethodExternalSecrets, "", s.newSecrets(tc.change)
			m.write(t, runScript, `[ "$ACTIONS_RUNNER_INPUT_JITCONFIG" = `+jitBlob+` ] || exit 1; `+printListening+printRunning+printCompleted)

			if got := m.waitForEnd(t, m.start(t, t.Context())); got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) {
				t.Errorf("ended with %s, %q; want %s, %q\n%s", got.Reason, got.Message, tc.reason, tc.message, m.log)
			}
		})
	}
}

// TestCredentialBySVIDSPIRE: with an audience, the machine authenticates to the operator with a JWT-SVID for
// it, also when it retries.
func TestCredentialBySVIDSPIRE(t *testing.T) {
	t.Parallel()

	server := spire.Start(t)

	keys, err := jwtbundle.Parse(spiffeid.RequireTrustDomainFromString(server.TrustDomain), server.JWKS(t))
	if err != nil {
		t.Fatal(err)
	}

	var calls atomic.Int32

	operator := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")

		svid, err := jwtsvid.ParseAndValidate(token, keys, []string{"hyperfleet"})
		if err != nil || svid.ID.Path() != machineID {
			t.Errorf("request by %v: %v", svid, err)
		}

		if calls.Add(1) == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, `{"message":"not with `+token+`"}`)

			return
		}

		_, _ = io.WriteString(w, `{"jit_config":"`+jitBlob+`"}`)
	}))
	t.Cleanup(operator.Close)

	m := newMachine(t)
	m.prepareAttestation(t, server, registerMachine(t, server, machineID, machineID, 600))
	m.cfg.Method, m.cfg.JITConfig = api.MethodCallback, ""
	m.cfg.Callback = &api.Callback{URL: operator.URL, Audience: "hyperfleet", CABundle: encodeBundle(operator)}
	m.write(t, runScript, `[ "$ACTIONS_RUNNER_INPUT_JITCONFIG" = `+jitBlob+` ] || exit 1; `+printListening+printRunning+printCompleted)

	result := m.start(t, t.Context())
	m.clock.waitAndFire(t, time.Second)

	if got := m.waitForEnd(t, result); got.Reason != api.ReasonJobDone {
		t.Errorf("%+v\n%s", got, m.log)
	}

	if strings.Contains(m.log.String(), "eyJ") {
		t.Errorf("the SVID is in the log:\n%s", m.log)
	}
}
