// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"embed"
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
)

//go:embed scripts/*.sh
var scripts embed.FS

const (
	root = "root:root"

	binDir  = "/usr/local/bin/"
	helpers = "/usr/local/libexec/hyperfleet/"

	agentService   = "hyperfleet-agent"
	kubeconfigPath = "/etc/hyperfleet/kubeconfig"
	agentPath      = binDir + "hyperfleet-agent"
	tailscalePath  = binDir + "tailscale"
	tailscaledPath = binDir + "tailscaled"
	exporterPath   = binDir + "node_exporter"
	rulesPath      = "/etc/hyperfleet/egress.nft"

	// stable is for how many seconds a service has to live to count as started. Ours are
	// started anew after two when they crash.
	stable = 10
)

// draft is what a host is made of, in order: the agent comes last, when all that its
// machines need is there.
func draft(cfg Config) *plan.Draft {
	d := &plan.Draft{}

	for _, render := range []func(*plan.Draft, Config){renderFirewall, renderTailscale, renderNodeExporter, renderAgent} {
		render(d, cfg)
	}

	return d
}

func body(name string) string {
	text, _ := scripts.ReadFile(path.Join("scripts", name+".sh"))

	return string(text)
}

func renderFirewall(d *plan.Draft, cfg Config) {
	text, err := rules(cfg)
	file := parts.File("firewall-rules", plan.File, parts.Place{Path: rulesPath, Mode: 0o644, Owner: root}, plan.Text(text))
	file.Reapplies = []string{"firewall"}
	d.Add(file, err)

	s := service{
		name: "hyperfleet-firewall", description: "What machines on this host may reach",
		// nft loads a file whole or not at all.
		start: "/usr/sbin/nft -f " + rulesPath, once: true,
		before: "network-pre.target",
	}
	s.add(d, "firewall", 0)
}

// rules is a table of nft(8) that takes the place of the one before in one transaction.
// What comes from machines is looked at before it is routed, so that the addresses of the
// host itself are shut to them too.
func rules(cfg Config) (string, error) {
	errs := []error{parts.CheckCIDR("vmCIDR", cfg.VMCIDR)}

	var open strings.Builder

	for i, cidr := range cfg.VMEgressCIDRs {
		errs = append(errs, parts.CheckCIDR(fmt.Sprintf("vmEgressCIDRs[%d]", i), cidr))
		fmt.Fprintf(&open, "\t\tip saddr %s ip daddr %s accept\n", cfg.VMCIDR, cidr)
	}

	if cfg.VMDNSIP != "" {
		errs = append(errs, parts.CheckIPv4("vmDNSIP", cfg.VMDNSIP))
		fmt.Fprintf(&open, "\t\tip saddr %s ip daddr %s meta l4proto { tcp, udp } th dport 53 accept\n", cfg.VMCIDR, cfg.VMDNSIP)
	}

	if err := errors.Join(errs...); err != nil {
		return "", err
	}

	return fmt.Sprintf(`# Written by hyperfleet: changes are lost.
table inet hyperfleet
delete table inet hyperfleet

table inet hyperfleet {
	chain egress {
		type filter hook prerouting priority filter; policy accept;
		ip saddr %[1]s ip daddr %[1]s accept
%[2]s		ip saddr %[1]s ip daddr { %[3]s } drop
	}

	chain nat {
		type nat hook postrouting priority srcnat; policy accept;
		ip saddr %[1]s ip daddr != %[1]s masquerade
	}
}
`, cfg.VMCIDR, open.String(), strings.Join(parts.Shut(), ", ")), nil
}

func renderTailscale(d *plan.Draft, cfg Config) {
	tailscaled := service{
		name: "hyperfleet-tailscaled", description: "Tailnet of this host",
		start: tailscaledPath + " --statedir=/var/lib/tailscale",
	}

	if !cfg.Tailnet {
		d.Add(parts.Script("tailscale", body("service-off"), "test ! -e "+tailscaled.path(),
			tailscaled.unitVar(), plan.Var{Name: "FILE", Value: tailscaled.path()}), nil)

		return
	}

	d.Add(program("tailscale-cli", tailscalePath, cfg.TailscaleBinary, "tailscale"),
		parts.CheckBinary("tailscaleBinary", cfg.TailscaleBinary))
	d.Add(program("tailscaled", tailscaledPath, cfg.TailscaledBinary, "tailscaled-service"),
		parts.CheckBinary("tailscaledBinary", cfg.TailscaledBinary))
	tailscaled.add(d, "tailscaled-service", stable, "tailscale")

	d.Add(parts.Tailscale(parts.Tailnet{
		CLI: tailscalePath, Hostname: cfg.NodeName, Tags: cfg.TailscaleTags,
		AcceptRoutes: cfg.TailscaleAcceptRoutes, AuthKey: cfg.TailscaleAuthKey,
	}), parts.CheckTags("tailscaleTags", cfg.TailscaleTags))
}

func renderNodeExporter(d *plan.Draft, cfg Config) {
	cli := ""
	if cfg.Tailnet {
		cli = tailscalePath
	}

	run := helpers + "node-exporter"
	d.Add(program("node-exporter", exporterPath, cfg.NodeExporterBinary, "node-exporter-service"),
		parts.CheckBinary("nodeExporterBinary", cfg.NodeExporterBinary))

	file := parts.File("node-exporter-run", plan.File, parts.Place{Path: run, Mode: 0o755, Owner: root},
		parts.ExporterRun(exporterPath, cli))
	file.Reapplies = []string{"node-exporter-service"}
	d.Add(file, nil)

	s := service{name: "hyperfleet-node-exporter", description: "Metrics of this host", start: run}
	s.add(d, "node-exporter-service", stable)
}

func renderAgent(d *plan.Draft, cfg Config) {
	kubeconfig := parts.Secret(plan.Kubeconfig, parts.Place{Path: kubeconfigPath, Mode: 0o600, Owner: root}, cfg.Kubeconfig)
	kubeconfig.Reapplies = []string{"agent-service"}
	d.Add(kubeconfig, nil)
	d.Add(program("agent", agentPath, cfg.AgentBinary, "agent-service"), parts.CheckBinary("agentBinary", cfg.AgentBinary))

	var labels []string
	for _, key := range slices.Sorted(maps.Keys(cfg.NodeLabels)) {
		labels = append(labels, key+"="+cfg.NodeLabels[key])
	}

	err := parts.CheckNodeLabels("nodeLabels", cfg.NodeLabels)
	if cfg.MaxPods < 1 {
		err = errors.Join(err, fmt.Errorf("maxPods %d: must be at least 1", cfg.MaxPods))
	}

	s := service{
		name: agentService, description: "Runs machines on this host",
		start: strings.Join([]string{
			agentPath, "--node-name=" + cfg.NodeName, "--kubeconfig=" + kubeconfigPath,
			"--max-pods=" + strconv.Itoa(cfg.MaxPods), "--node-labels=" + strings.Join(labels, ","),
		}, " "),
	}

	unit := s.unit("agent-unit")
	unit.Reapplies = []string{"agent-service"}
	d.Add(unit, err)
	d.Add(s.restart("agent-service", stable), nil)
}

// Leave stops the agent of a host, and takes away what it joined its cluster with. Machines that
// it has started live on.
func Leave() plan.Part {
	agent := service{name: agentService}

	return parts.Script("leave", body("leave"), "",
		agent.unitVar(), plan.Var{Name: "FILE", Value: agent.path()}, plan.Var{Name: "KUBECONFIG_FILE", Value: kubeconfigPath})
}

// program is a part that is a program, and what is started anew after it.
func program(label, dest string, content plan.Content, restarts string) plan.Part {
	part := parts.File(label, plan.Executable, parts.Place{Path: dest, Mode: 0o755, Owner: root}, content)
	part.Reapplies = []string{restarts}

	return part
}
