// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/plantest"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

var _ = flag.Bool("update", false, "write the golden files")

func one() Config {
	return Config{
		NodeName: "rack-1", Kubeconfig: log.NewSecret("kubeconfig-of-one\n"),
		AgentBinary: plan.NewText("agent one"), MaxPods: 16, NodeLabels: map[string]string{"example.com/fleet": "a", "zone": "one"},
		Tailnet: true, TailscaleBinary: plan.NewText("tailscale one"), TailscaledBinary: plan.NewText("tailscaled one"),
		TailscaleTags: []string{"tag:host"}, TailscaleAcceptRoutes: true, TailscaleAuthKey: log.NewSecret("tailnet-one"),
		VMCIDR: "192.168.122.0/24", VMEgressCIDRs: []string{"10.32.0.0/16", "172.16.16.0/22"}, VMDNSIP: "10.96.0.10",
		NodeExporterBinary: plan.NewText("exporter one"),
	}
}

func other() Config {
	return Config{
		NodeName: "rack-2.example.com", Kubeconfig: log.NewSecret("kubeconfig-of-other"),
		AgentBinary: plan.NewText("agent other"), MaxPods: 8, NodeLabels: map[string]string{"zone": "other"},
		TailscaleBinary: plan.NewText("tailscale other"), TailscaledBinary: plan.NewText("tailscaled other"),
		TailscaleTags: []string{"tag:other"}, TailscaleAuthKey: log.NewSecret("tailnet-other"),
		VMCIDR: "10.200.0.0/16", VMEgressCIDRs: nil, VMDNSIP: "10.96.0.11",
		NodeExporterBinary: plan.NewText("exporter other"),
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	plantest.Run(t, plantest.Kind[Config]{
		One: one(), Other: other(), Draft: renderDraft, Render: Render, Hash: HostConfigHash,
		Parts: []string{
			"firewall-rules file always",
			"firewall-unit unit always",
			"firewall script always",
			"tailscale-cli binary always",
			"tailscaled binary always",
			"tailscaled-service-unit unit always",
			"tailscaled-service script always",
			"tailscale script always",
			"node-exporter binary always",
			"node-exporter-run file always",
			"node-exporter-service-unit unit always",
			"node-exporter-service script always",
			"kubeconfig file always",
			"agent binary always",
			"agent-unit unit always",
			"agent-service script always",
		},
	})
}

func TestRenderNamesFieldAndFix(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		change func(*Config)
		want   []string
	}{
		"no network for VMs":      {func(c *Config) { c.VMCIDR = "" }, []string{"vmCIDR", "10.32.0.0/16"}},
		"egress to all addresses": {func(c *Config) { c.VMEgressCIDRs[1] = "0.0.0.0/1" }, []string{"vmEgressCIDRs[1]", "wider than /8"}},
		"DNS server with a rule":  {func(c *Config) { c.VMDNSIP = "10.0.0.1 accept" }, []string{"vmDNSIP"}},
		"no agent":                {func(c *Config) { c.AgentBinary = plan.Content{} }, []string{"agentBinary is missing"}},
		"no tailnet key":          {func(c *Config) { c.TailscaleAuthKey = log.Secret{} }, []string{"tailscaleAuthKey is missing"}},
		"no kubeconfig":           {func(c *Config) { c.Kubeconfig = log.Secret{} }, []string{"kubeconfig is missing"}},
		"name with a specifier":   {func(c *Config) { c.NodeName = "a%H" }, []string{"nodeName"}},
		"no machine":              {func(c *Config) { c.MaxPods = 0 }, []string{"maxPods 0"}},
		"invalid label":           {func(c *Config) { c.NodeLabels = map[string]string{"a b": ""} }, []string{"nodeLabels"}},
		"tag that is a flag":      {func(c *Config) { c.TailscaleTags = []string{"tag:--ssh"} }, []string{"tailscaleTags"}},
		"no exporter":             {func(c *Config) { c.NodeExporterBinary = plan.Content{} }, []string{"nodeExporterBinary is missing"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			cfg := one()
			tc.change(&cfg)

			_, err := Render(cfg)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not say %q", err, want)
				}
			}
		})
	}
}

// nft loads the rules into its own network namespace twice, and the second table replaces the
// first.
func TestNftablesLoadsRules(t *testing.T) {
	t.Parallel()

	nft, unshare := plantest.Tool(t, "nft", "nftables"), plantest.Tool(t, "unshare", "util-linux")
	if err := exec.CommandContext(t.Context(), unshare, "--user", "--map-root-user", "--net", nft, "list", "ruleset").Run(); err != nil {
		t.Skipf("no network namespaces for this user: %v", err)
	}

	for name, cfg := range map[string]Config{"one": one(), "other": other()} {
		text, err := renderRules(cfg)
		if err != nil {
			t.Fatal(err)
		}

		file := filepath.Join(t.TempDir(), name+".nft")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}

		// The script needs no quotes, because the paths have no spaces.
		script := nft + " -f " + file + " && " + nft + " -f " + file + " && " + nft + " list ruleset"

		out, err := exec.CommandContext(t.Context(), unshare, "--user", "--map-root-user", "--net", "bash", "-c", script).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s\n%s", name, err, out, text)
		}

		if got := bytes.Count(out, []byte("169.254.0.0/16")); got != 1 {
			t.Errorf("%s: %d rules block networks, want one:\n%s", name, got, out)
		}
	}
}

// systemd-analyze verifies the units.
func TestSystemdAcceptsUnits(t *testing.T) {
	t.Parallel()

	p, err := Render(one())
	if err != nil {
		t.Fatal(err)
	}

	analyze, dir := plantest.Tool(t, "systemd-analyze", "systemd"), t.TempDir()

	var files []string

	for _, part := range p.Parts() {
		if part.Kind != plan.Unit {
			continue
		}

		// The programs do not exist on the test machine.
		text := []byte(part.Content.String())
		for _, program := range []string{"/usr/sbin/nft", tailscaledPath, helperDir + "node-exporter", agentPath} {
			text = bytes.ReplaceAll(text, []byte("ExecStart="+program), []byte("ExecStart=/bin/true"))
		}

		file := filepath.Join(dir, filepath.Base(part.Path))
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}

		files = append(files, file)
	}

	out, err := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no", "--recursive-errors=no"}, files...)...).CombinedOutput()
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, dir) || strings.Contains(line, "hyperfleet-") {
			t.Errorf("systemd: %s", line)
		}
	}

	if err != nil || len(files) != 4 {
		t.Errorf("%d units: %v\n%s", len(files), err, out)
	}
}
