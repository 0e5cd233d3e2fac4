// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/workload"
	"github.com/hyperfleet/hyperfleet/workload/github"
)

func newTemplate(change func(*v1alpha1.HypervisorMachineTemplateSpec)) *v1alpha1.HypervisorMachineTemplate {
	out := &v1alpha1.HypervisorMachineTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "template"},
		Spec: v1alpha1.HypervisorMachineTemplateSpec{
			Resources: v1alpha1.MachineResources{CPU: 2, Memory: resource.MustParse("2Gi")},
			Bootstrap: v1alpha1.Bootstrap{
				Method: v1alpha1.BootstrapRunnerToken,
				Config: &v1alpha1.BootstrapConfig{GitHub: &v1alpha1.GitHubBootstrap{Organization: "octo-org"}},
			},
		},
	}
	if change != nil {
		change(&out.Spec)
	}

	return out
}

func newInput(t *v1alpha1.HypervisorMachineTemplate, settings vmspec.Settings) vmspec.Input {
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ci", Name: "pool-abc12", UID: "11111111-2222-4333-8444-555555555555"},
		Spec: v1alpha1.MachineClaimSpec{
			RunnerPoolRef:  &v1alpha1.LocalObjectReference{Name: "pool"},
			WorkloadConfig: v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions},
			Lifecycle: &v1alpha1.Lifecycle{
				JobTimeout: &metav1.Duration{Duration: time.Hour}, IdleTimeout: &metav1.Duration{Duration: 7 * time.Minute},
			},
		},
	}

	runner, err := github.Platform{}.ResolveRunner(t, claim.Spec.WorkloadConfig)
	if err != nil {
		panic(err)
	}

	return vmspec.Input{
		Claim: claim, Template: t, Settings: settings,
		Runner: runner, Request: vmspec.NewRunnerRequest(claim, runner, settings),
		Names:      vmspec.NewNames(claim, t, &v1alpha1.HypervisorCluster{}, false),
		Credential: workload.Credential{JITConfig: "one-use", RunnerID: "7"},
	}
}

// The ISO holds the claim of the machine, its only credential and the report URL, and no long-lived secret.
func TestSeedOfMachine(t *testing.T) {
	t.Parallel()

	template := newTemplate(func(spec *v1alpha1.HypervisorMachineTemplateSpec) {
		spec.CloudInit = &v1alpha1.CloudInit{
			UserData:    "#cloud-config\npackages: [tool-for-{{ .ClaimName }}]\n",
			MetaData:    "rack: rack-of-{{ .ClaimName }}\n",
			NetworkData: "version: 2\nethernets: {ens77: {dhcp4: true}}\n",
		}
	})

	seed, err := vmspec.RenderSeed(newInput(template, vmspec.Settings{
		OperatorUID: "op", GuestURL: "https://fleet.example:8443", ReportKey: []byte("a key that stays here"),
	}))
	if err != nil {
		t.Fatal(err)
	}

	text := string(seed.UserData) + string(seed.MetaData) + string(seed.NetworkConfig)
	for _, part := range []string{
		guest.ConfigPath, "one-use", "pool-abc12-11111111", "11111111-2222-4333-8444-555555555555", "1h0m0s", "7m0s",
		"https://fleet.example:8443/machines/ci/pool-abc12/11111111-2222-4333-8444-555555555555/report",
		vmspec.OperatorLabel("op"), guest.ServiceUnit, "tool-for-pool-abc12", "rack-of-pool-abc12", "ens77",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the cloud-init ISO does not hold %q:\n%s", part, text)
		}
	}

	if strings.Contains(text, "a key that stays here") {
		t.Error("the cloud-init ISO holds the key that machines' tokens are signed with")
	}
}

// The ISO holds the host name, the FQDN, the search domains and the DNS servers that the cluster gives to its machines.
func TestSeedHasTheNames(t *testing.T) {
	t.Parallel()

	in := newInput(newTemplate(nil), vmspec.Settings{})
	in.Names = vmspec.NewNames(in.Claim, in.Template, &v1alpha1.HypervisorCluster{Spec: v1alpha1.HypervisorClusterSpec{
		DNS: &v1alpha1.HypervisorDNS{Domain: "fleet.example", Servers: []string{"192.0.2.53"}, Search: []string{"search.example"}},
	}}, false)

	seed, err := vmspec.RenderSeed(in)
	if err != nil {
		t.Fatal(err)
	}

	for part, text := range map[string]string{
		"hostname: pool-abc12\n": string(seed.UserData), "fqdn: pool-abc12.fleet.example\n": string(seed.UserData),
		"192.0.2.53": string(seed.NetworkConfig), "search.example": string(seed.NetworkConfig),
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the cloud-init ISO does not hold %q:\n%s", part, text)
		}
	}
}

// With method callback the cloud-init ISO holds a code and no credential. The template is accepted if
// guest.url is set.
func TestSeedWithCallbackHasNoCredential(t *testing.T) {
	t.Parallel()

	settings := vmspec.Settings{
		OperatorUID: "op", GuestURL: "https://fleet.example:8443", GuestCABundle: func() string { return "a bundle" }, ReportKey: []byte("a key that stays here"),
	}
	callback := newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) { s.Bootstrap.Method = v1alpha1.BootstrapCallback })

	if err := vmspec.DryRender(callback, settings); err != nil {
		t.Fatal(err)
	}

	noKey := settings
	noKey.ReportKey = nil

	if err := vmspec.DryRender(callback, noKey); errclass.ReasonOf(err, "") != "ReportKeyMissing" {
		t.Errorf("without a key: %v", err)
	}

	in := newInput(callback, settings)
	in.Credential.RunnerToken = "one-hour" // must not be on the ISO even if it is set

	seed, err := vmspec.RenderSeed(in)
	if err != nil {
		t.Fatal(err)
	}

	text := string(seed.UserData) + string(seed.MetaData)
	code := vmspec.ClaimCode(settings.ReportKey, in.Claim.Namespace, in.Claim.Name, in.Claim.UID)

	for _, part := range []string{
		code, "https://fleet.example:8443/machines/ci/pool-abc12/11111111-2222-4333-8444-555555555555/credential",
	} {
		if !strings.Contains(text, part) {
			t.Errorf("the cloud-init ISO does not hold %q:\n%s", part, text)
		}
	}

	for _, secret := range []string{"one-use", "one-hour", "a key that stays here"} {
		if strings.Contains(text, secret) {
			t.Errorf("the cloud-init ISO holds %q", secret)
		}
	}

	other := vmspec.ClaimCode(settings.ReportKey, in.Claim.Namespace, in.Claim.Name, "another")
	if code == other || code == vmspec.ReportToken(settings.ReportKey, in.Claim.Namespace, in.Claim.Name, in.Claim.UID) {
		t.Error("the code is valid for another purpose")
	}
}

func TestDelivery(t *testing.T) {
	t.Parallel()

	file := filepath.Join(t.TempDir(), "bootstrap-service")
	if err := os.WriteFile(file, []byte("the program"), 0o600); err != nil {
		t.Fatal(err)
	}

	program, err := vmspec.OpenProgram(file)
	if err != nil {
		t.Fatal(err)
	}

	settings := vmspec.Settings{
		GuestURL: "https://fleet.example:8443", BootstrapServices: map[string]vmspec.Program{"x64": program},
	}
	by := func(method string) *v1alpha1.HypervisorMachineTemplate {
		return newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) { s.Bootstrap.Delivery = method })
	}

	iso, err := vmspec.RenderSeed(newInput(by(v1alpha1.DeliveryISO), settings))
	if err != nil || string(iso.Files["bootstrap-service"]) != "the program" {
		t.Errorf("iso: error %v, %d files", err, len(iso.Files))
	}

	if err := os.WriteFile(file, []byte("another one"), 0o600); err != nil {
		t.Fatal(err)
	}

	if _, err := vmspec.RenderSeed(newInput(by(v1alpha1.DeliveryISO), settings)); errclass.ReasonOf(err, "") != "BootstrapServiceChanged" {
		t.Errorf("a program that was overwritten after the start: %v", err)
	}

	download, err := vmspec.RenderSeed(newInput(by(v1alpha1.DeliveryDownload), settings))
	if err != nil || !strings.Contains(string(download.UserData), program.SHA256) || len(download.Files) > 0 {
		t.Errorf("download: error %v, the checksum is not in\n%s", err, download.UserData)
	}

	_, err = vmspec.RenderSeed(newInput(by(v1alpha1.DeliveryISO), vmspec.Settings{}))
	if errclass.ReasonOf(err, "") != "BootstrapServiceMissing" {
		t.Errorf("iso without a program: %v", err)
	}

	windows := newInput(by(v1alpha1.DeliveryISO), settings)
	windows.Template.Spec.Bootstrap.OS = v1alpha1.OSWindows

	if _, err = vmspec.RenderSeed(windows); errclass.ReasonOf(err, "") != "BootstrapDeliveryUnsupported" {
		t.Errorf("iso for Windows: %v", err)
	}

	windows.Template = by(v1alpha1.DeliveryImage)
	if _, err = vmspec.RenderSeed(windows); err != nil {
		t.Errorf("image for Windows: %v", err)
	}

	windows.Template.Spec.Bootstrap.OS, windows.Template.Spec.Attestation = v1alpha1.OSWindows, &v1alpha1.Attestation{}
	if err = vmspec.DryRender(windows.Template, settings); errclass.ReasonOf(err, "") != vmspec.ReasonAttestationUnavailable ||
		!strings.Contains(err.Error(), "Windows") {
		t.Errorf("attestation with Windows: %v", err)
	}

	err = vmspec.DryRender(by(v1alpha1.DeliveryDownload), vmspec.Settings{})
	if errclass.ReasonOf(err, "") != "GuestURLMissing" {
		t.Errorf("download without a URL: %v", err)
	}
}

// The program that machines download has the checksum in their user data. User data of users finds it under the name of
// the file in a release.
func TestProgramsAreServedByArchitecture(t *testing.T) {
	t.Parallel()

	sum := sha256.Sum256([]byte("the program"))
	handler := http.NewServeMux()
	vmspec.HandlePrograms(handler, map[string]vmspec.Program{
		"x64": {Content: strings.NewReader("the program"), Size: 11, SHA256: hex.EncodeToString(sum[:])},
	})

	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)

	for path, want := range map[string]int{
		"/bootstrap/x86_64": http.StatusOK, "/bootstrap/aarch64": http.StatusNotFound,
		"/bootstrap-service-linux-amd64": http.StatusOK, "/bootstrap-service-linux-arm64": http.StatusNotFound,
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL+path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}

		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}

		body, err := io.ReadAll(response.Body)
		_ = response.Body.Close()

		if err != nil || response.StatusCode != want || (want == http.StatusOK && string(body) != "the program") {
			t.Errorf("%s: status %d, body %q, error %v", path, response.StatusCode, body, err)
		}
	}
}

// Settings that this version does not support are refused with an error when the template is checked,
// before a machine fails.
func TestTemplateCheckRejectsUnsupportedSettings(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		change func(*v1alpha1.HypervisorMachineTemplateSpec)
		reason string
	}{
		"a valid template": {nil, ""},
		"callback without an address": {func(s *v1alpha1.HypervisorMachineTemplateSpec) {
			s.Bootstrap.Method = v1alpha1.BootstrapCallback
		}, "GuestURLMissing"},
		"secrets manager without a name": {func(s *v1alpha1.HypervisorMachineTemplateSpec) {
			s.Bootstrap.Method = v1alpha1.BootstrapExternalSecrets
		}, "ExternalSecretsMissing"},
		"secrets manager without an identity": {func(s *v1alpha1.HypervisorMachineTemplateSpec) {
			s.Bootstrap = v1alpha1.Bootstrap{
				Method: v1alpha1.BootstrapExternalSecrets,
				Config: &v1alpha1.BootstrapConfig{ExternalSecrets: &v1alpha1.ExternalSecrets{}},
			}
		}, "AttestationUnavailable"},
		"secrets manager with invalid authorities": {func(s *v1alpha1.HypervisorMachineTemplateSpec) {
			s.Attestation = &v1alpha1.Attestation{Method: v1alpha1.AttestationTPM}
			s.Bootstrap = v1alpha1.Bootstrap{
				Method: v1alpha1.BootstrapExternalSecrets,
				Config: &v1alpha1.BootstrapConfig{ExternalSecrets: &v1alpha1.ExternalSecrets{CABundle: "words"}},
			}
		}, "ExternalSecretsInvalid"},
		"attestation without a SPIRE server": {func(s *v1alpha1.HypervisorMachineTemplateSpec) {
			s.Attestation = &v1alpha1.Attestation{Method: v1alpha1.AttestationTPM}
		}, "AttestationUnavailable"},
		"netmask": {func(s *v1alpha1.HypervisorMachineTemplateSpec) {
			s.Network = &v1alpha1.MachineNetwork{
				Mode: "static", Static: &v1alpha1.StaticNetwork{IPAddress: "192.0.2.9", Netmask: "255.0.255.0"},
			}
		}, "NetmaskInvalid"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			err := vmspec.DryRender(newTemplate(tc.change), vmspec.Settings{})
			if reason := errclass.ReasonOf(err, ""); reason != tc.reason || (err == nil) != (tc.reason == "") {
				t.Errorf("error %v, want reason %q", err, tc.reason)
			}
		})
	}
}
