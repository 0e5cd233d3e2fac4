// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit_test

import (
	"encoding/base64"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/test/exe"
)

const (
	secretJIT    = "eyJqaXQiOiJzZWNyZXQtaml0LWJsb2IifQ=="
	secretReport = "report-token-secret"
)

// newSampleInput returns the input of a machine with all common settings.
func newSampleInput() cloudinit.Input {
	expires := time.Date(2026, 11, 21, 5, 0, 0, 0, time.UTC)

	return cloudinit.Input{
		Vars: cloudinit.Vars{
			WorkloadMethod: guest.MethodRunnerToken, BootstrapMethod: guest.MethodRunnerToken,
			JITConfig: secretJIT, RegistrationURL: "https://github.com/o/r", RunnerName: "ci-abc",
			Labels: cloudinit.List{"self-hosted", "linux"}, ExpiresAt: expires.Format(time.RFC3339),
			RunnerConfig: cloudinit.RunnerConfig{
				InstallPath: "/opt/actions-runner", WorkDir: "/tmp/runner-work",
				ConfigScript: "config.sh", RunScript: "run.sh", OS: "linux", Arch: "x64",
			},
			Hostname: "ci-abc", FQDN: "ci-abc.hf.local", NetworkMode: "dhcp", ClaimName: "ci-abc",
			BootstrapServiceBinary: cloudinit.NewBinary(strings.NewReader("#!/bin/sh\nexit 0\n"), 17),
		},
		Config: &guest.Config{
			Method: guest.MethodRunnerToken, Platform: "github-actions", JITConfig: secretJIT,
			RunnerName: "ci-abc", Labels: []string{"self-hosted", "linux"}, ExpiresAt: &expires,
			Runner:      guest.Runner{InstallPath: "/opt/actions-runner", WorkDir: "/tmp/runner-work", ConfigScript: "config.sh", RunScript: "run.sh", OS: "linux", Arch: "x64"},
			IdleTimeout: guest.Duration(5 * time.Minute), JobTimeout: guest.Duration(30 * time.Minute),
			Report: &guest.ReportTo{URL: "https://hf.example/report", Token: secretReport},
		},
		InstanceID: "0e1f-uid", Hostname: "ci-abc", FQDN: "ci-abc.hf.local",
		DNS: v1alpha1.MachineDNS{Domain: "hf.local"},
	}
}

// userConfig is the part of a cloud-config that the tests check.
type userConfig struct {
	Hostname   string
	FQDN       string
	Packages   []string
	WriteFiles []struct {
		Path, Content, Encoding, Permissions string
	} `yaml:"write_files"`
	RunCmd []any `yaml:"runcmd"`
}

func mustRender(t *testing.T, in cloudinit.Input) (cloudinit.Output, userConfig) {
	t.Helper()

	out, err := cloudinit.Render(in)
	if err != nil {
		t.Fatalf("render: %v", err)
	}

	var c userConfig
	if err := yaml.Unmarshal(out.UserData, &c); err != nil {
		t.Fatalf("user data does not parse: %v\n%s", err, out.UserData)
	}

	return out, c
}

// getFile returns the content of the entry of write_files with the path. There must be exactly one.
func (c userConfig) getFile(t *testing.T, path string) string {
	t.Helper()

	found := ""

	for _, f := range c.WriteFiles {
		if f.Path == path {
			if found != "" {
				t.Errorf("%s is written twice", path)
			}

			found = f.Content
		}
	}

	return found
}

func readTestdata(t *testing.T, name string) string {
	t.Helper()

	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}

	return string(data)
}

func TestRenderWithoutUserData(t *testing.T) {
	t.Parallel()

	in := newSampleInput()
	out, c := mustRender(t, in)

	var got guest.Config
	if err := json.Unmarshal([]byte(c.getFile(t, guest.ConfigPath)), &got); err != nil {
		t.Fatal(err)
	}

	if diff := cmp.Diff(in.Config, &got); diff != "" {
		t.Errorf("runner configuration (-want +got):\n%s", diff)
	}

	if c.WriteFiles[0].Permissions != "0600" {
		t.Errorf("permissions %q", c.WriteFiles[0].Permissions)
	}

	if diff := cmp.Diff([]any{[]any{"systemctl", "start", "--no-block", guest.ServiceUnit}}, c.RunCmd); diff != "" {
		t.Errorf("runcmd (-want +got):\n%s", diff)
	}

	if want := "instance-id: 0e1f-uid\nlocal-hostname: ci-abc\n"; string(out.MetaData) != want {
		t.Errorf("meta data %q", out.MetaData)
	}
}

// TestDocumentSample renders the sample of document 000 with a JIT configuration and with a registration
// token.
func TestDocumentSample(t *testing.T) {
	t.Parallel()

	in := newSampleInput()
	in.UserData = readTestdata(t, "document-runner.yaml.tmpl")

	for name, change := range map[string]func(*cloudinit.Input){
		"jit":   func(*cloudinit.Input) {},
		"token": func(in *cloudinit.Input) { in.Vars.RunnerToken, in.Vars.JITConfig = "AABB-token", "" },
		"by iso": func(in *cloudinit.Input) {
			in.Delivery.Method = v1alpha1.DeliveryISO
			in.Delivery.SHA256 = listChecksums()
		},
		"by url": func(in *cloudinit.Input) {
			in.Delivery = cloudinit.Delivery{Method: "download", URL: "https://x.example", SHA256: listChecksums()}
		},
		"no labels": func(in *cloudinit.Input) { in.Vars.Labels = nil },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := in
			change(&in)
			_, c := mustRender(t, in)

			want := *in.Config
			want.RunnerToken = in.Vars.RunnerToken
			want.RegistrationURL = in.Vars.RegistrationURL

			var got guest.Config
			if err := json.Unmarshal([]byte(c.getFile(t, guest.ConfigPath)), &got); err != nil {
				t.Fatal(err)
			}

			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("runner configuration (-want +got):\n%s", diff)
			}

			if len(c.WriteFiles) != 3 || len(c.RunCmd) != 3 || len(c.Packages) != 4 {
				t.Errorf("the sample does it all itself, but: %+v", c)
			}
		})
	}
}

func listChecksums() map[string]string {
	return map[string]string{"x86_64": strings.Repeat("ab", 32), "aarch64": strings.Repeat("cd", 32)}
}

// TestSchema checks the output with cloud-init's own schema.
func TestSchema(t *testing.T) {
	t.Parallel()

	for name, change := range map[string]func(*cloudinit.Input){
		"no user data":    func(*cloudinit.Input) {},
		"document runner": func(in *cloudinit.Input) { in.UserData = readTestdata(t, "document-runner.yaml.tmpl") },
		"document host":   func(in *cloudinit.Input) { in.UserData = readTestdata(t, "document-hostname.yaml.tmpl") },
		"download": func(in *cloudinit.Input) {
			in.Delivery = cloudinit.Delivery{Method: "download", URL: "https://x.example", SHA256: listChecksums(), CABundle: "PEM"}
		},
		"iso": func(in *cloudinit.Input) { in.Delivery = cloudinit.Delivery{Method: "iso", SHA256: listChecksums()} },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newSampleInput()
			change(&in)
			out, _ := mustRender(t, in)

			path := filepath.Join(t.TempDir(), "user-data")
			if err := os.WriteFile(path, out.UserData, 0o600); err != nil {
				t.Fatal(err)
			}

			output, err := exec.Command(exe.FindProgram(t, "cloud-init", "cloud-init"), "schema", "--config-file", path).CombinedOutput()
			if err != nil || !strings.Contains(string(output), "Valid") {
				t.Errorf("cloud-init schema: %v\n%s\n%s", err, output, out.UserData)
			}
		})
	}
}

// TestNetplan checks the network configurations with netplan.
func TestNetplan(t *testing.T) {
	t.Parallel()

	no := false

	for name, tc := range map[string]struct {
		change func(*cloudinit.Input)
		want   []string
		lacks  string
	}{
		"dhcp": {
			func(*cloudinit.Input) {},
			[]string{"Name=e*", "DHCP=ipv4", "ClientIdentifier=mac", "Hostname=ci-abc", "Domains=hf.local"}, "=false",
		},
		"dhcp without": {change: func(in *cloudinit.Input) {
			in.Network = &v1alpha1.MachineNetwork{DHCP: &v1alpha1.DHCP{UseDNS: &no, UseRoutes: &no, SendHostname: &no}}
		}, want: []string{"UseDNS=false", "UseRoutes=false", "SendHostname=false"}},
		"no dhcp": {func(in *cloudinit.Input) {
			in.Network = &v1alpha1.MachineNetwork{DHCP: &v1alpha1.DHCP{Enabled: &no}}
		}, []string{"Name=e*", "Domains=hf.local"}, "DHCP="},
		"static": {change: func(in *cloudinit.Input) {
			in.Network = &v1alpha1.MachineNetwork{Mode: "static", Static: &v1alpha1.StaticNetwork{
				IPAddress: "192.168.1.100", Netmask: "255.255.255.0", Gateway: "192.168.1.1", DNS: []string{"192.168.1.1"},
			}}
		}, want: []string{"Address=192.168.1.100/24", "Gateway=192.168.1.1", "DNS=192.168.1.1"}, lacks: "DHCP="},
		"static v6": {change: func(in *cloudinit.Input) {
			in.Network = &v1alpha1.MachineNetwork{Mode: "static", Static: &v1alpha1.StaticNetwork{IPAddress: "2001:db8::5", Netmask: "64", Gateway: "fe80::1"}}
		}, want: []string{"Address=2001:db8::5/64", "Gateway=fe80::1"}},
		"pool": {change: func(in *cloudinit.Input) {
			in.Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.10/24"), netip.MustParsePrefix("fd00::10/64")}
			in.Network = &v1alpha1.MachineNetwork{Mode: "static", Static: &v1alpha1.StaticNetwork{Pool: &v1alpha1.AddressPool{
				Gateway: []v1alpha1.IPAddress{"10.0.0.1", "fe80::1"}, Nameservers: []v1alpha1.IPAddress{"10.0.0.2", "fd00::2"},
			}}}
		}, want: []string{
			"Address=10.0.0.10/24", "Address=fd00::10/64", "Gateway=10.0.0.1", "Gateway=fe80::1", "DNS=10.0.0.2", "DNS=fd00::2",
			"Domains=hf.local",
		}},
		"document": {change: func(in *cloudinit.Input) { in.NetworkData = readTestdata(t, "document-network.yaml.tmpl") }, want: []string{"DHCP=ipv4", "ClientIdentifier=mac"}},
		"document, static": {change: func(in *cloudinit.Input) {
			in.NetworkData = readTestdata(t, "document-network.yaml.tmpl")
			in.Vars.NetworkMode, in.Vars.StaticIP, in.Vars.NetmaskBits, in.Vars.Gateway = "static", "10.0.0.5", 24, "10.0.0.1"
			in.Vars.DNSServers = cloudinit.List{"10.0.0.2", "2001:db8::53"}
		}, want: []string{"Address=10.0.0.5/24", "DNS=10.0.0.2", "DNS=2001:db8::53"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newSampleInput()
			tc.change(&in)
			out, _ := mustRender(t, in)

			got := strings.Join(slices.Sorted(maps.Values(exe.RunNetplan(t, out.NetworkConfig))), "")
			for _, want := range tc.want {
				if !strings.Contains(got, want+"\n") {
					t.Errorf("networkd configuration lacks %q:\n%s\nfrom\n%s", want, got, out.NetworkConfig)
				}
			}

			if tc.lacks != "" && strings.Contains(got, tc.lacks) {
				t.Errorf("networkd configuration contains %q:\n%s\nfrom\n%s", tc.lacks, got, out.NetworkConfig)
			}
		})
	}
}

// In mode cloud-init without network data, the machine keeps the network configuration of its image.
func TestModeCloudInitWritesNoNetwork(t *testing.T) {
	t.Parallel()

	in := newSampleInput()
	in.Network, in.NetworkData = &v1alpha1.MachineNetwork{Mode: v1alpha1.NetworkModeCloudInit}, ""

	if out, _ := mustRender(t, in); len(out.NetworkConfig) > 0 {
		t.Errorf("network configuration:\n%s", out.NetworkConfig)
	}
}

// A small program is part of the user data, and is read for each rendering.
func TestFunctionsOfTemplates(t *testing.T) {
	t.Parallel()

	in := newSampleInput()
	in.UserData = "#cloud-config\npackages: [{{ \"a: \\\"b\\\"\" | base64 }}, {{ toJson \"a: \\\"b\\\"\" }}]\n"

	if _, config := mustRender(t, in); !slices.Equal(config.Packages, []string{"YTogImIi", `a: "b"`}) {
		t.Errorf("the user data contains %q", config.Packages)
	}
}

func TestSmallProgram(t *testing.T) {
	t.Parallel()

	for range 2 {
		in := newSampleInput()
		in.UserData = "#cloud-config\npackages: [{{ .BootstrapServiceBinary | base64 }}, {{ toJson .BootstrapServiceBinary }}]\n"
		want := base64.StdEncoding.EncodeToString([]byte("#!/bin/sh\nexit 0\n"))

		if _, config := mustRender(t, in); !slices.Equal(config.Packages, []string{want, want}) {
			t.Errorf("the user data contains %q, want %q twice", config.Packages, want)
		}
	}
}
