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
	rootOwner = "root:root"

	binDir    = "/usr/local/bin/"
	helperDir = "/usr/local/libexec/hyperfleet/"

	agentService   = "hyperfleet-agent"
	kubeconfigPath = "/etc/hyperfleet/kubeconfig"
	agentPath      = binDir + "hyperfleet-agent"
	tailscalePath  = binDir + "tailscale"
	tailscaledPath = binDir + "tailscaled"
	exporterPath   = binDir + "node_exporter"
	rulesPath      = "/etc/hyperfleet/egress.nft"

	// stableSeconds is how long a service must run to count as started. systemd restarts our
	// services two seconds after a crash.
	stableSeconds = 10
)

// Render returns the plan of one host. Its error lists all missing or invalid fields, each with the
// fix.
func Render(cfg Config) (plan.Plan, error) {
	p, err := renderDraft(cfg).Plan()
	if err := errors.Join(validateHost(cfg), err); err != nil {
		return plan.Plan{}, fmt.Errorf("render plan of host %q: %w", cfg.NodeName, err)
	}

	return p, nil
}

// HostConfigHash returns the digest of what all hosts of a fleet get.
func HostConfigHash(cfg Config) string { return plan.HostConfigHash(cfg, renderDraft) }

// renderDraft renders the parts of a host in order. The agent comes last, after everything that its
// machines need.
func renderDraft(cfg Config) *plan.Draft {
	d := &plan.Draft{}

	for _, render := range []func(*plan.Draft, Config){renderFirewall, renderTailscale, renderNodeExporter, renderAgent} {
		render(d, cfg)
	}

	return d
}

func readScript(name string) string {
	text, _ := scripts.ReadFile(path.Join("scripts", name+".sh"))

	return string(text)
}

func renderFirewall(d *plan.Draft, cfg Config) {
	text, err := renderRules(cfg)
	spec := parts.FileSpec{Path: rulesPath, Mode: 0o644, Owner: rootOwner}
	file := parts.NewFile("firewall-rules", plan.File, spec, plan.NewText(text))
	file.Reapplies = []string{"firewall"}
	d.Add(file, err)

	s := service{
		name: "hyperfleet-firewall", description: "Firewall for machines on this host",
		// nft loads a file completely or not at all.
		start: "/usr/sbin/nft -f " + rulesPath, oneshot: true,
		before: "network-pre.target",
	}
	s.addTo(d, "firewall", 0)
}

// renderRules returns an nft(8) ruleset that replaces the previous table in one transaction. The
// egress chain filters packets of machines before routing, so that it also protects the addresses
// of the host itself.
func renderRules(cfg Config) (string, error) {
	errs := []error{parts.ValidateCIDR("vmCIDR", cfg.VMCIDR)}

	var allowed strings.Builder

	for i, cidr := range cfg.VMEgressCIDRs {
		errs = append(errs, parts.ValidateCIDR(fmt.Sprintf("vmEgressCIDRs[%d]", i), cidr))
		fmt.Fprintf(&allowed, "\t\tip saddr %s ip daddr %s accept\n", cfg.VMCIDR, cidr)
	}

	if cfg.VMDNSIP != "" {
		errs = append(errs, parts.ValidateIPv4("vmDNSIP", cfg.VMDNSIP))
		fmt.Fprintf(&allowed, "\t\tip saddr %s ip daddr %s meta l4proto { tcp, udp } th dport 53 accept\n", cfg.VMCIDR, cfg.VMDNSIP)
	}

	if err := errors.Join(errs...); err != nil {
		return "", err
	}

	return fmt.Sprintf(`# Managed by HyperFleet: changes are overwritten.
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
`, cfg.VMCIDR, allowed.String(), strings.Join(parts.DeniedNetworks(), ", ")), nil
}

// renderTailscale adds the programs and settings of the tailnet, or the part that removes tailscaled from a host
// without a tailnet.
func renderTailscale(d *plan.Draft, cfg Config) {
	tailscaled := service{
		name: "hyperfleet-tailscaled", description: "Tailnet connection of this host",
		start: tailscaledPath + " --statedir=/var/lib/tailscale",
	}

	if !cfg.Tailnet {
		d.Add(parts.NewScript("tailscale", readScript("service-off"), "test ! -e "+tailscaled.path(),
			tailscaled.unitVar(), plan.Var{Name: "FILE", Value: tailscaled.path()}), nil)

		return
	}

	d.Add(newProgram("tailscale-cli", tailscalePath, cfg.TailscaleBinary, "tailscale"),
		parts.ValidateBinary("tailscaleBinary", cfg.TailscaleBinary))
	d.Add(newProgram("tailscaled", tailscaledPath, cfg.TailscaledBinary, "tailscaled-service"),
		parts.ValidateBinary("tailscaledBinary", cfg.TailscaledBinary))
	tailscaled.addTo(d, "tailscaled-service", stableSeconds, "tailscale")

	d.Add(parts.NewTailscale(parts.Tailnet{
		CLI: tailscalePath, Hostname: cfg.NodeName, Tags: cfg.TailscaleTags,
		AcceptRoutes: cfg.TailscaleAcceptRoutes, AuthKey: cfg.TailscaleAuthKey,
	}), parts.ValidateTags("tailscaleTags", cfg.TailscaleTags))
}

func renderNodeExporter(d *plan.Draft, cfg Config) {
	cli := ""
	if cfg.Tailnet {
		cli = tailscalePath
	}

	runPath := helperDir + "node-exporter"
	d.Add(newProgram("node-exporter", exporterPath, cfg.NodeExporterBinary, "node-exporter-service"),
		parts.ValidateBinary("nodeExporterBinary", cfg.NodeExporterBinary))

	file := parts.NewFile("node-exporter-run", plan.File, parts.FileSpec{Path: runPath, Mode: 0o755, Owner: rootOwner},
		parts.RenderExporterRun(exporterPath, cli))
	file.Reapplies = []string{"node-exporter-service"}
	d.Add(file, nil)

	s := service{name: "hyperfleet-node-exporter", description: "Metrics of this host", start: runPath}
	s.addTo(d, "node-exporter-service", stableSeconds)
}

// renderAgent adds the kubeconfig, the program and the service of the agent to the draft.
func renderAgent(d *plan.Draft, cfg Config) {
	spec := parts.FileSpec{Path: kubeconfigPath, Mode: 0o600, Owner: rootOwner}
	kubeconfig := parts.NewSecret(plan.KubeconfigLabel, spec, cfg.Kubeconfig)
	kubeconfig.Reapplies = []string{"agent-service"}
	d.Add(kubeconfig, nil)
	d.Add(newProgram("agent", agentPath, cfg.AgentBinary, "agent-service"), parts.ValidateBinary("agentBinary", cfg.AgentBinary))

	var labels []string
	for _, key := range slices.Sorted(maps.Keys(cfg.NodeLabels)) {
		labels = append(labels, key+"="+cfg.NodeLabels[key])
	}

	err := parts.ValidateNodeLabels("nodeLabels", cfg.NodeLabels)
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

	unit := s.unitPart("agent-unit")
	unit.Reapplies = []string{"agent-service"}
	d.Add(unit, err)
	d.Add(s.restartPart("agent-service", stableSeconds), nil)
}

// NewCredentialRemoval returns a script that stops the agent of a host and deletes its kubeconfig.
// Machines that the agent has started keep running.
func NewCredentialRemoval() plan.Part {
	agent := service{name: agentService}

	return parts.NewScript("leave", readScript("leave"), "",
		agent.unitVar(), plan.Var{Name: "FILE", Value: agent.path()}, plan.Var{Name: "KUBECONFIG_FILE", Value: kubeconfigPath})
}

// newProgram returns the part that installs a program. Whenever this part is applied, the part with the label follower, which
// runs the program, is applied again.
func newProgram(label, dest string, content plan.Content, follower string) plan.Part {
	part := parts.NewFile(label, plan.Executable, parts.FileSpec{Path: dest, Mode: 0o755, Owner: rootOwner}, content)
	part.Reapplies = []string{follower}

	return part
}
