// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
)

const joinToken = "0a1b2c3d-the-token"

// newIdentitySettings returns the settings of an operator with a SPIRE server.
func newIdentitySettings() vmspec.Settings {
	return vmspec.Settings{
		OperatorUID: "op", GuestURL: "https://fleet.example:8443", ReportKey: []byte("a key that stays here"),
		TrustDomain: "hyperfleet.io", HasDevIDAuthority: true,
	}
}

// newAttestingInput returns the input of the cloud-init ISO of a machine that attests.
func newAttestingInput(t *v1alpha1.HypervisorMachineTemplate) vmspec.Input {
	in := newInput(t, newIdentitySettings())
	in.Claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{Identity: vmspec.NewMachineIdentity(in.Claim, t, in.Settings)}
	in.Attestation = identity.Attestation{
		JoinToken: joinToken, ServerAddress: "spire.example:8081", TrustBundle: "-----BEGIN CERTIFICATE-----\n",
	}

	return in
}

// parseConfig parses the configuration of the bootstrap service from user data.
func parseConfig(t *testing.T, userData []byte) guest.Config {
	t.Helper()

	var data struct {
		WriteFiles []struct {
			Path    string `json:"path"`
			Content string `json:"content"`
		} `json:"write_files"`
	}
	if err := yaml.Unmarshal(userData, &data); err != nil {
		t.Fatal(err)
	}

	var config guest.Config

	for _, file := range data.WriteFiles {
		if file.Path != guest.ConfigPath {
			continue
		}

		if err := json.Unmarshal([]byte(file.Content), &config); err != nil {
			t.Fatal(err)
		}
	}

	return config
}

// For each attestation method and bootstrap method, the test checks what the cloud-init ISO holds, and what
// it does not hold.
func TestSeedOfAnAttestedMachine(t *testing.T) {
	t.Parallel()

	machineIdentity := &guest.SPIFFE{
		Enabled: true, Method: guest.AttestJoinToken, JoinToken: joinToken, TrustDomain: "hyperfleet.io",
		SPIFFEID:      "spiffe://hyperfleet.io/vm/ci/pool-abc12/11111111-2222-4333-8444-555555555555",
		ServerAddress: "spire.example:8081", TrustBundle: "-----BEGIN CERTIFICATE-----\n",
	}
	external := &v1alpha1.ExternalSecrets{
		Address: "https://vault.example:8200", Role: "runner", Path: "secret/data/{namespace}/{pool}/{claim}/{uid}",
		Keys: map[string]string{"jit_config": "jit"},
	}

	cases := map[string]struct {
		attestation, bootstrap string
		check                  func(t *testing.T, config guest.Config)
	}{
		"credential on the cloud-init ISO": {v1alpha1.AttestationJoinToken, v1alpha1.BootstrapRunnerToken, func(t *testing.T, config guest.Config) {
			t.Helper()

			if diff := cmp.Diff(machineIdentity, config.SPIFFE); diff != "" || config.JITConfig == "" || config.Callback != nil {
				t.Errorf("SPIFFE (-want +got):\n%s\nconfiguration %+v", diff, config)
			}
		}},
		"without a method, a token is used": {"", v1alpha1.BootstrapRunnerToken, func(t *testing.T, config guest.Config) {
			t.Helper()

			if diff := cmp.Diff(machineIdentity, config.SPIFFE); diff != "" {
				t.Error(diff)
			}
		}},
		"callback by SVID": {v1alpha1.AttestationJoinToken, v1alpha1.BootstrapCallback, func(t *testing.T, config guest.Config) {
			t.Helper()

			if c := config.Callback; c == nil || c.Code != "" || c.Audience != "hyperfleet/op" || config.JITConfig != "" {
				t.Errorf("configuration %+v", config)
			}
		}},
		"secrets manager": {v1alpha1.AttestationJoinToken, v1alpha1.BootstrapExternalSecrets, func(t *testing.T, config guest.Config) {
			t.Helper()

			want := &guest.Secrets{
				Manager: guest.SecretsVault, Address: "https://vault.example:8200", Auth: guest.SecretsAuthJWT, Role: "runner",
				Path: "secret/data/ci/pool/pool-abc12/11111111-2222-4333-8444-555555555555", Keys: map[string]string{"jit_config": "jit"},
			}
			if diff := cmp.Diff(want, config.Secrets); diff != "" || config.JITConfig != "" || config.Callback != nil {
				t.Errorf("secrets (-want +got):\n%s\nconfiguration %+v", diff, config)
			}
		}},
		"TPM": {v1alpha1.AttestationTPM, v1alpha1.BootstrapCallback, func(t *testing.T, config guest.Config) {
			t.Helper()

			if s := config.SPIFFE; s.JoinToken != "" || s.Method != guest.AttestTPM || s.TPMDevice != "/dev/tpm1" || s.DevID == nil {
				t.Errorf("SPIFFE %+v", s)
			}
		}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			template := newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) {
				s.Attestation = &v1alpha1.Attestation{Method: tc.attestation}
				if tc.attestation == v1alpha1.AttestationTPM {
					s.Attestation.Config = &v1alpha1.AttestationConfig{TPMDevice: "/dev/tpm1"}
				}

				s.Bootstrap.Method, s.Bootstrap.Config.ExternalSecrets = tc.bootstrap, external
			})
			settings := newIdentitySettings()
			if tc.bootstrap == v1alpha1.BootstrapExternalSecrets {
				settings.GuestURL, settings.ReportKey = "", nil // the operator hands these machines no credential
			}

			if err := vmspec.DryRender(template, settings); err != nil {
				t.Fatal(err)
			}

			seed, err := vmspec.RenderSeed(newAttestingInput(template))
			if err != nil {
				t.Fatal(err)
			}

			tc.check(t, parseConfig(t, seed.UserData))

			if strings.Contains(string(seed.UserData), "a key that stays here") {
				t.Error("the cloud-init ISO holds the operator's key")
			}
		})
	}
}

// The user's cloud-init templates can use the attestation data under the documented names.
func TestCloudInitSeesTheIdentity(t *testing.T) {
	t.Parallel()

	seed, err := vmspec.RenderSeed(newAttestingInput(newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) {
		s.Attestation = &v1alpha1.Attestation{}
		s.CloudInit = &v1alpha1.CloudInit{
			UserData: "#cloud-config\nseen: [{{ .SPIFFEEnabled }}, {{ .AttestationMethod }}, {{ .JoinToken }}, {{ .SPIFFEID | toJson }}]\n",
		}
	})))
	if err != nil {
		t.Fatal(err)
	}

	var data struct {
		Seen []any `json:"seen"`
	}
	if err := yaml.Unmarshal(seed.UserData, &data); err != nil {
		t.Fatal(err)
	}

	want := []any{true, "join-token", joinToken, "spiffe://hyperfleet.io/vm/ci/pool-abc12/11111111-2222-4333-8444-555555555555"}
	if !slices.Equal(data.Seen, want) {
		t.Errorf("values %v, want %v", data.Seen, want)
	}
}

// The path of a machine's SPIFFE ID leads back to its claim.
func TestSPIFFEIDLeadsToTheClaim(t *testing.T) {
	t.Parallel()

	in := newAttestingInput(newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) { s.Attestation = &v1alpha1.Attestation{} }))
	path := strings.TrimPrefix(in.Claim.Status.BootstrapInfo.Identity.SPIFFEID, "spiffe://hyperfleet.io")

	got, err := identity.ParsePath(path)
	want := identity.ID{Namespace: "ci", Name: "pool-abc12", UID: "11111111-2222-4333-8444-555555555555"}

	if err != nil || got != want {
		t.Errorf("%s is the ID of %+v, %v; want %+v", path, got, err, want)
	}
}

// Each variable of document 000 has the value of this machine.
func TestVariablesOfCloudInit(t *testing.T) {
	t.Parallel()

	settings := newIdentitySettings()
	settings.BootstrapServices = map[string]vmspec.Program{}
	expires := time.Date(2031, 2, 3, 4, 5, 6, 0, time.UTC)
	template := newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) {
		s.Attestation = &v1alpha1.Attestation{
			Method: v1alpha1.AttestationTPM, Config: &v1alpha1.AttestationConfig{TPMDevice: "/dev/tpm1"},
		}
		s.Network = &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeStatic, Static: &v1alpha1.StaticNetwork{
			IPAddress: "192.0.2.5", Netmask: "255.255.255.0", Gateway: "192.0.2.1", DNS: []string{"192.0.2.3"},
		}}
		s.CloudInit = &v1alpha1.CloudInit{UserData: "#cloud-config\n" +
			"a: [{{ .WorkloadMethod }}, {{ .BootstrapMethod }}, {{ .AttestationMethod }}, {{ .TPMDevice }}, {{ .RunnerToken }}]\n" +
			"b: [{{ .RegistrationURL | toJson }}, {{ .RunnerName }}, {{ .ExpiresAt | toJson }}, {{ .BootstrapServiceURL | toJson }}]\n" +
			"c: [{{ .Hostname }}, {{ .FQDN }}, {{ .NetworkMode }}, {{ .StaticIP }}, {{ .NetmaskBits }}, {{ .Gateway }}]\n" +
			"d: [{{ .RunnerConfig.InstallPath }}, {{ .RunnerConfig.WorkDir }}, {{ .RunnerConfig.OS }}, {{ .RunnerConfig.Arch }}]\n" +
			"e: {{ .Labels }}\nf: {{ .DNSServers }}\n"}
	})
	in := newAttestingInput(template)
	in.Settings = settings
	in.Credential = workload.Credential{
		RunnerToken: "one-use", RegistrationURL: "https://github.example/octo-org", ExpiresAt: expires,
	}
	in.Names = vmspec.Names{Hostname: "pool-abc12", FQDN: "pool-abc12.hf.example", Domain: "hf.example"}

	seed, err := vmspec.RenderSeed(in)
	if err != nil {
		t.Fatal(err)
	}

	got := map[string][]any{}

	var data map[string]any
	if err := yaml.Unmarshal(seed.UserData, &data); err != nil {
		t.Fatal(err)
	}

	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		got[key], _ = data[key].([]any)
	}

	labels := []any{}
	for _, label := range in.Request.Labels {
		labels = append(labels, label)
	}

	want := map[string][]any{
		"a": {"runner-token", "runner-token", "tpm", "/dev/tpm1", "one-use"},
		"b": {"https://github.example/octo-org", "pool-abc12-11111111", "2031-02-03T04:05:06Z", "https://fleet.example:8443"},
		"c": {"pool-abc12", "pool-abc12.hf.example", "static", "192.0.2.5", float64(24), "192.0.2.1"},
		"d": {"/opt/actions-runner", "/tmp/runner-work", "linux", "x64"},
		"e": labels, "f": {"192.0.2.3"},
	}
	if diff := cmp.Diff(want, got); diff != "" || len(labels) < 4 {
		t.Errorf("%d labels, variables (-want +got):\n%s", len(labels), diff)
	}
}

func TestRegistration(t *testing.T) {
	t.Parallel()

	for method, registered := range map[string]string{"": identity.JoinToken, v1alpha1.AttestationTPM: identity.TPM} {
		template := newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) {
			s.Attestation = &v1alpha1.Attestation{Method: method, Config: &v1alpha1.AttestationConfig{
				JoinTokenTTL: &metav1.Duration{Duration: 90 * time.Second},
			}}
		})

		want := identity.Machine{
			ID:     identity.ID{Namespace: "ci", Name: "pool-abc12", UID: "11111111-2222-4333-8444-555555555555"},
			Method: registered, TTL: 90 * time.Second, Template: "template", Pool: "pool", Workload: v1alpha1.WorkloadGitHubActions,
		}
		if diff := cmp.Diff(want, vmspec.NewRegistration(newAttestingInput(template).Claim, template)); diff != "" {
			t.Errorf("method %q: %s", method, diff)
		}
	}
}

// A machine of a platform that binds each machine to one job gets its credential with method callback, or
// on the cloud-init ISO.
func TestSecretsManagerNeedsUnboundPlatform(t *testing.T) {
	t.Parallel()

	for method, refused := range map[string]bool{
		v1alpha1.BootstrapExternalSecrets: true, v1alpha1.BootstrapCallback: false, v1alpha1.BootstrapRunnerToken: false,
	} {
		template := newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) { s.Bootstrap.Method = method })

		err := vmspec.CheckPlatform(template, workload.RunnerSpec{Platform: v1alpha1.WorkloadGeneric, NeedsJob: true})
		if got := errclass.ReasonOf(err, "") == vmspec.ReasonBootstrapMethodUnavailable; got != refused {
			t.Errorf("%s: %v", method, err)
		}

		if err := vmspec.CheckPlatform(template, workload.RunnerSpec{Platform: v1alpha1.WorkloadGitHubActions}); err != nil {
			t.Errorf("%s for GitHub: %v", method, err)
		}
	}
}

// A recorded handover without a proof, from an older operator, requires a claim code.
func TestHandoverWithoutProof(t *testing.T) {
	t.Parallel()

	if got := vmspec.OfferedProof(&v1alpha1.CredentialHandover{}); got != v1alpha1.ProofClaimCode {
		t.Errorf("proof = %s", got)
	}
}
