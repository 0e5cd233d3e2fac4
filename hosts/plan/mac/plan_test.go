// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/plantest"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

var _ = flag.Bool("update", false, "write the golden files")

func one() Config {
	return Config{
		IP: "192.0.2.10", SSHUser: "m1", UserPassword: log.NewSecret("password-of-one"),
		SSHPrivateKey: log.NewSecret("ssh-key-of-one"), KnownHostFingerprint: "SHA256:one",
		NodeName: "mac-1", ProviderID: "scw-applesilicon://fr-par-1/1", Kubeconfig: log.NewSecret("kubeconfig-of-one\n"),
		HostCPU: 10, HostMemoryMB: 24576, MaxPods: 2, NodeLabels: map[string]string{"example.com/fleet": "a", "zone": "one"},
		TartKubeletBinary: plan.NewText("kubelet one"), TartTarball: plan.NewText("tart one"),
		Tailnet: true, TailscaleBinary: plan.NewText("tailscale one"), TailscaledBinary: plan.NewText("tailscaled one"),
		TailscaleTags: []string{"tag:host", "tag:mac"}, TailscaleAcceptRoutes: true, TailscaleAuthKey: log.NewSecret("tailnet-one"),
		VMKuraEgressCIDR: "10.32.0.0/16", VMClusterDNSIP: "10.96.0.10", VMCachePNCIDR: "172.16.16.0/22", VMCachePNVLAN: 1597,
		NodeExporterBinary: plan.NewText("exporter one"),
	}
}

func other() Config {
	return Config{
		IP: "192.0.2.20", SSHUser: "m2", UserPassword: log.NewSecret("password-of-other"),
		SSHPrivateKey: log.NewSecret("ssh-key-of-other"), KnownHostFingerprint: "SHA256:other",
		NodeName: "mac-2.example.com", ProviderID: "scw-applesilicon://fr-par-1/2", Kubeconfig: log.NewSecret("kubeconfig-of-other"),
		HostCPU: 8, HostMemoryMB: 16384, DisableVMGC: true, MaxPods: 1, NodeLabels: map[string]string{"zone": "other"},
		TartKubeletBinary: plan.NewText("kubelet other"), TartTarball: plan.NewText("tart other"),
		TailscaleBinary: plan.NewText("tailscale other"), TailscaledBinary: plan.NewText("tailscaled other"),
		TailscaleTags: []string{"tag:other"}, TailscaleAuthKey: log.NewSecret("tailnet-other"),
		VMKuraEgressCIDR: "10.64.0.0/16", VMClusterDNSIP: "10.96.0.11", VMCachePNCIDR: "172.16.32.0/22", VMCachePNVLAN: 1600,
		NodeExporterBinary: plan.NewText("exporter other"),
	}
}

func kind() plantest.Kind[Config] {
	return plantest.Kind[Config]{
		One: one(), Other: other(), Draft: renderDraft, Render: Render, Hash: HostConfigHash,
		Parts: []string{
			"settings script first-boot",
			"software-updates script always",
			"console script always",
			"tart binary first-boot",
			"pn-interface script always",
			"firewall-anchor file always",
			"firewall-load file always",
			"firewall script always",
			"firewall-plist unit always",
			"firewall-job script always",
			"vmnat-run file always",
			"vmnat script always",
			"vmnat-plist unit always",
			"vmnat-job script always",
			"tailscale-cli binary always",
			"tailscaled binary always",
			"tailscaled-plist unit always",
			"tailscaled-job script always",
			"tailscale script always",
			"node-exporter binary always",
			"node-exporter-run file always",
			"node-exporter-plist unit always",
			"node-exporter-job script always",
			"kubeconfig file always",
			"tart-kubelet-install binary always",
			"launchd-plist unit always",
			"launchd script always",
		},
	}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	plantest.Run(t, kind())
}

// The fields are those that document 003 names. TestPlan reads from the tags which fields belong to one host.
func TestFieldsOfDocument(t *testing.T) {
	t.Parallel()

	for name, belongsToHost := range map[string]bool{
		"NodeName": true, "IP": true, "Kubeconfig": true, "VMCachePNVLAN": true, "TailscaleAuthKey": true, "DisableVMGC": true,
		"VMKuraEgressCIDR": false, "VMCachePNCIDR": false, "TailscaleTags": false, "TailscaleAcceptRoutes": false,
		"TartKubeletBinary": false, "TailscaleBinary": false, "NodeExporterBinary": false,
		"TartTarball": true, // in no hash
	} {
		cfg := one()
		reflect.ValueOf(&cfg).Elem().FieldByName(name).Set(reflect.ValueOf(other()).FieldByName(name))

		if isSame := HostConfigHash(cfg) == HostConfigHash(one()); isSame != belongsToHost {
			t.Errorf("%s changed: the hash is the same: %v, want %v", name, isSame, belongsToHost)
		}
	}
}

func TestRenderNamesFieldAndFix(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		change func(*Config)
		want   []string
	}{
		"invalid CIDR":                 {func(c *Config) { c.VMKuraEgressCIDR = "10.0.0.0" }, []string{"vmKuraEgressCIDR", "10.32.0.0/16"}},
		"CIDR with host bits":          {func(c *Config) { c.VMCachePNCIDR = "10.1.2.3/16" }, []string{"vmCachePNCIDR", "write 10.1.0.0/16"}},
		"CIDR of everything":           {func(c *Config) { c.VMKuraEgressCIDR = "0.0.0.0/0" }, []string{"vmKuraEgressCIDR", "wider than /8"}},
		"CIDR of IPv6":                 {func(c *Config) { c.VMKuraEgressCIDR = "fd00::/64" }, []string{"vmKuraEgressCIDR", "IPv4"}},
		"CIDR with a rule in it":       {func(c *Config) { c.VMKuraEgressCIDR = "10.0.0.0/8\npass all" }, []string{"vmKuraEgressCIDR"}},
		"DNS server that is a network": {func(c *Config) { c.VMClusterDNSIP = "10.96.0.0/24" }, []string{"vmClusterDNSIP", "10.96.0.10"}},
		"no kubelet":                   {func(c *Config) { c.TartKubeletBinary = plan.Content{} }, []string{"tartKubeletBinary is missing", "image"}},
		"no tailscale":                 {func(c *Config) { c.TailscaleBinary = plan.Content{} }, []string{"tailscaleBinary is missing"}},
		"no tailscaled":                {func(c *Config) { c.TailscaledBinary = plan.NewText("") }, []string{"tailscaledBinary is missing"}},
		"no exporter":                  {func(c *Config) { c.NodeExporterBinary = plan.Content{} }, []string{"nodeExporterBinary is missing"}},
		"no Tart":                      {func(c *Config) { c.TartTarball = plan.Content{} }, []string{"tartTarball is missing"}},
		"tag without its prefix":       {func(c *Config) { c.TailscaleTags = []string{"host"} }, []string{"tailscaleTags", "tag:host"}},
		"no tag":                       {func(c *Config) { c.TailscaleTags = nil }, []string{"tailscaleTags is empty"}},
		"no name":                      {func(c *Config) { c.NodeName = "" }, []string{"nodeName is missing"}},
		"name with a command":          {func(c *Config) { c.NodeName = "a;reboot" }, []string{"nodeName"}},
		"no user":                      {func(c *Config) { c.SSHUser = "" }, []string{"sshUser", "console"}},
		"root":                         {func(c *Config) { c.SSHUser = "root" }, []string{"sshUser", "other than root"}},
		"no password of the user":      {func(c *Config) { c.UserPassword = log.Secret{} }, []string{"userPassword is missing"}},
		"no kubeconfig":                {func(c *Config) { c.Kubeconfig = log.Secret{} }, []string{"kubeconfig is missing"}},
		"no tailnet key":               {func(c *Config) { c.TailscaleAuthKey = log.Secret{} }, []string{"tailscaleAuthKey is missing", "disable the tailnet"}},
		"no size":                      {func(c *Config) { c.HostCPU = 0 }, []string{"hostCPU 0"}},
		"no VLAN":                      {func(c *Config) { c.VMCachePNVLAN = 0 }, []string{"vmCachePNVLAN 0", "1 to 4094"}},
		"VLAN without a network":       {func(c *Config) { c.VMCachePNCIDR = "" }, []string{"set vmCachePNCIDR"}},
		"three machines":               {func(c *Config) { c.MaxPods = 3 }, []string{"maxPods 3", "license"}},
		"label with a space":           {func(c *Config) { c.NodeLabels = map[string]string{"a": "b c"} }, []string{"nodeLabels", "b c"}},
		"two errors":                   {func(c *Config) { c.MaxPods, c.NodeName = 0, "" }, []string{"maxPods", "nodeName"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			cfg := one()
			tc.change(&cfg)

			p, err := Render(cfg)
			if err == nil || len(p.Parts()) != 0 {
				t.Fatalf("Render() = %d parts, %v: want none, and an error", len(p.Parts()), err)
			}

			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
		})
	}
}

func TestHashOfInvalidConfig(t *testing.T) {
	t.Parallel()

	hash := func(cidr string) string {
		cfg := one()
		cfg.VMKuraEgressCIDR = cidr

		return HostConfigHash(cfg)
	}

	seen := map[string]string{}
	for _, cidr := range []string{"10.32.0.0/16", "wrong", "wrong too"} {
		if first, again := hash(cidr), hash(cidr); first != again {
			t.Errorf("two hashes with %q differ", cidr)
		}

		if before, ok := seen[hash(cidr)]; ok {
			t.Errorf("%q and %q have the same hash", before, cidr)
		}

		seen[hash(cidr)] = cidr
	}

	// An invalid per-host field does not change the fleet's hash.
	cfg := one()
	cfg.NodeName = "a;reboot"

	if HostConfigHash(cfg) != HostConfigHash(one()) {
		t.Error("an invalid name of one host changes the hash of all hosts")
	}
}

func BenchmarkHostConfigHash(b *testing.B) {
	cfg := one()
	cfg.TartKubeletBinary = plan.NewBinary(make([]byte, 60<<20))

	for b.Loop() {
		HostConfigHash(cfg)
	}
}

func BenchmarkRender(b *testing.B) {
	hosts := make([]Config, 1000)
	for i := range hosts {
		hosts[i] = one()
		hosts[i].NodeName = fmt.Sprintf("mac-%d", i)
	}

	for i := 0; b.Loop(); i++ {
		if _, err := Render(hosts[i%len(hosts)]); err != nil {
			b.Fatal(err)
		}
	}
}
