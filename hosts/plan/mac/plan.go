// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"embed"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
)

//go:embed scripts/*.sh
var scripts embed.FS

const (
	rootWheel = "root:wheel"

	binDir    = "/usr/local/bin/"
	helperDir = "/usr/local/libexec/hyperfleet/"
	stateDir  = "/var/db/hyperfleet/"

	kubeconfigPath = "/etc/tart-kubelet/kubeconfig"
	kubeletPath    = binDir + "tart-kubelet"
	tailscalePath  = binDir + "tailscale"
	tailscaledPath = binDir + "tailscaled"
	exporterPath   = binDir + "node_exporter"

	pfConf       = "/etc/pf.conf"
	egressAnchor = "com.apple/000.hyperfleet.egress"
	natAnchor    = "com.apple/000.hyperfleet.nat"
	egressRules  = "/etc/pf.anchors/hyperfleet.egress"

	// vmNetwork is the network that macOS assigns to machines (vmnet(3), shared mode).
	vmNetwork = "192.168.64.0/24"
	// networkService is the name of the network service of the private network.
	networkService = "hyperfleet-pn"
	ethernetDevice = "en0"

	// stableSeconds is how long a job must run to count as started. launchd restarts a crashed job
	// after ten seconds.
	stableSeconds = 15
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

// renderDraft renders the parts of a Mac in order. The kubelet comes last, after everything that
// its machines need.
func renderDraft(cfg Config) *plan.Draft {
	d := &plan.Draft{}

	for _, render := range []func(*plan.Draft, Config){
		renderSettings, renderUpdates, renderConsole, renderTart, renderInterface, renderFirewall, renderVMNAT,
		renderTailscale, renderNodeExporter, renderKubelet,
	} {
		render(d, cfg)
	}

	return d
}

// readScript returns an embedded script of this package. A missing script gives an empty text,
// which the tests of every script would detect.
func readScript(name string) string {
	text, _ := scripts.ReadFile(path.Join("scripts", name+".sh"))

	return string(text)
}

func renderSettings(d *plan.Draft, cfg Config) {
	settings := parts.NewScript("settings", readScript("settings"), "", plan.Var{Name: "NAME", Value: cfg.NodeName})
	d.Add(parts.OnlyOnFirstBoot(settings), nil)
}

// renderUpdates adds the part that leaves updates of macOS to the operator. macOS still looks for updates, and installs
// data files such as those of XProtect, without a restart.
func renderUpdates(d *plan.Draft, _ Config) {
	const domain = "/Library/Preferences/com.apple.SoftwareUpdate"

	keys := []string{"AutomaticDownload", "AutomaticallyInstallMacOSUpdates", "CriticalUpdateInstall", "SplatEnabled"}
	probes := make([]string, 0, len(keys))

	for _, key := range keys {
		probes = append(probes, "test \"$(defaults read "+domain+" "+key+")\" = 0")
	}

	d.Add(parts.NewScript("software-updates", readScript("updates"), strings.Join(probes, "\n"),
		plan.Var{Name: "DOMAIN", Value: domain}, plan.Var{Name: "KEYS", Value: strings.Join(keys, " ")}), nil)
}

// renderConsole adds the part that logs the host's user in at the console. A machine with macOS
// needs a key of the host, and only a process in that session can get the key (Apple,
// Virtualization.framework). Unlike all other secrets, the password stays the same until the host
// is reinstalled.
func renderConsole(d *plan.Draft, cfg Config) {
	part := parts.NewScript("console", readScript("console"),
		"test \"$(stat -f %Su /dev/console)\" = "+plan.Quote(cfg.consoleUser())+"\ntest -s /etc/kcpassword",
		plan.Var{Name: "LOGIN", Value: cfg.consoleUser()}, plan.Var{Name: "END", Value: plan.EndMarker})
	part.Secret = cfg.UserPassword
	part.Reapplies = []string{"launchd"} // a job in another session has ended with that session
	d.Add(part, nil)
}

func renderTart(d *plan.Draft, cfg Config) {
	const app = "/opt/tart/tart.app"

	d.Add(plan.Part{
		Label: "tart", Kind: plan.Executable, Schedule: plan.FirstBoot,
		Path: app, Mode: 0o755, Owner: rootWheel, Content: cfg.TartTarball,
		Apply: plan.Render(readScript("tart"),
			plan.Var{Name: "APP", Value: app},
			plan.Var{Name: "LINK", Value: binDir + "tart"},
			plan.Var{Name: "SHA256", Value: cfg.TartTarball.SHA256()}),
	}, parts.ValidateBinary("tartTarball", cfg.TartTarball))
}

// renderInterface adds the part that creates the VLAN interface of the private network, or removes it from a
// host without a private network.
func renderInterface(d *plan.Draft, cfg Config) {
	vlan := ""
	if cfg.VMCachePNVLAN != 0 {
		vlan = strconv.Itoa(cfg.VMCachePNVLAN)
	}

	const listOurVLAN = "networksetup -listVLANs | grep -A 3 -xF 'VLAN User Defined Name: " + networkService + "'"

	probe := listOurVLAN + " | grep -xF 'Tag: " + vlan + "'"
	if vlan == "" {
		probe = "test -z \"$(" + listOurVLAN + ")\""
	}

	d.Add(parts.NewScript("pn-interface", readScript("interface"), probe,
		plan.Var{Name: "SERVICE", Value: networkService},
		plan.Var{Name: "PARENT", Value: ethernetDevice},
		plan.Var{Name: "VLAN", Value: vlan}), nil)
}

// renderTailscale adds the programs and settings of the tailnet, or the part that removes tailscaled from a host
// without a tailnet.
func renderTailscale(d *plan.Draft, cfg Config) {
	if !cfg.Tailnet {
		d.Add(newJobRemoval("tailscale", newTailscaleJob()), nil)

		return
	}

	d.Add(newProgram("tailscale-cli", tailscalePath, cfg.TailscaleBinary, "tailscale"),
		parts.ValidateBinary("tailscaleBinary", cfg.TailscaleBinary))
	d.Add(newProgram("tailscaled", tailscaledPath, cfg.TailscaledBinary, "tailscaled-job"),
		parts.ValidateBinary("tailscaledBinary", cfg.TailscaledBinary))
	addJob(d, "tailscaled", newTailscaleJob(), stableSeconds, "tailscale")

	d.Add(parts.NewTailscale(parts.Tailnet{
		CLI: tailscalePath, Hostname: cfg.NodeName, Tags: cfg.TailscaleTags,
		AcceptRoutes: cfg.TailscaleAcceptRoutes, AuthKey: cfg.TailscaleAuthKey,
	}), parts.ValidateTags("tailscaleTags", cfg.TailscaleTags))
}

func newTailscaleJob() job {
	return job{
		name:      "io.hyperfleet.tailscaled",
		arguments: []string{tailscaledPath, "--statedir=/var/db/tailscale"},
		keepAlive: true,
	}
}

func renderNodeExporter(d *plan.Draft, cfg Config) {
	cli := ""
	if cfg.Tailnet {
		cli = tailscalePath
	}

	runPath := helperDir + "node-exporter"

	d.Add(newProgram("node-exporter", exporterPath, cfg.NodeExporterBinary, "node-exporter-job"),
		parts.ValidateBinary("nodeExporterBinary", cfg.NodeExporterBinary))
	d.Add(newHelper("node-exporter-run", runPath, parts.RenderExporterRun(exporterPath, cli), "node-exporter-job"), nil)
	exporter := job{name: "io.hyperfleet.node-exporter", arguments: []string{runPath}, keepAlive: true}
	addJob(d, "node-exporter", exporter, stableSeconds)
}

func renderKubelet(d *plan.Draft, cfg Config) {
	spec := parts.FileSpec{Path: kubeconfigPath, Mode: 0o600, Owner: cfg.consoleUser() + ":staff"}
	kubeconfig := parts.NewSecret(plan.KubeconfigLabel, spec, cfg.Kubeconfig)
	kubeconfig.Reapplies = []string{"launchd"}
	d.Add(kubeconfig, nil)

	d.Add(newKubeletInstall(cfg), parts.ValidateBinary("tartKubeletBinary", cfg.TartKubeletBinary))

	kubelet, err := newKubeletJob(cfg)
	plist := kubelet.unitPart("launchd-plist")
	plist.Reapplies = []string{"launchd"}
	d.Add(plist, err)
	d.Add(kubelet.startPart("launchd", stableSeconds), nil)
}

// newKubeletInstall returns the part that installs the kubelet. Unlike other programs, the host
// signs the kubelet.
func newKubeletInstall(cfg Config) plan.Part {
	stamp := stateDir + "tart-kubelet.sums"
	sum := cfg.TartKubeletBinary.SHA256()
	spec := parts.FileSpec{Path: kubeletPath, Mode: 0o755, Owner: rootWheel}
	quoted := plan.Quote(spec.Path)

	return plan.Part{
		Label: "tart-kubelet-install", Kind: plan.Executable, Schedule: plan.Always,
		Path: spec.Path, Mode: spec.Mode, Owner: spec.Owner, Content: cfg.TartKubeletBinary,
		Apply: plan.Render(readScript("kubelet"), append(spec.Vars(),
			plan.Var{Name: "STAMP", Value: stamp},
			plan.Var{Name: "SHA256", Value: sum})...),
		Probe: "read -r pushed signed <" + stamp + "\n" +
			"test \"$pushed\" = " + plan.Quote(sum) + "\n" +
			"sum=$(sha256sum <" + quoted + " || shasum -a 256 <" + quoted + ")\n" +
			"test \"${sum%% *}\" = \"$signed\"",
		Reapplies: []string{"launchd"},
	}
}

func newKubeletJob(cfg Config) (job, error) {
	arguments := []string{
		kubeletPath,
		"--node-name=" + cfg.NodeName,
		"--provider-id=" + cfg.ProviderID,
		"--kubeconfig=" + kubeconfigPath,
		"--host-cpu=" + strconv.Itoa(cfg.HostCPU),
		"--host-memory-mb=" + strconv.Itoa(cfg.HostMemoryMB),
		"--max-pods=" + strconv.Itoa(cfg.MaxPods),
		"--node-labels=" + formatLabels(cfg.NodeLabels),
	}

	// Without a tailnet the kubelet detects the host's address.
	if cfg.Tailnet {
		arguments = append(arguments, "--node-ip-source=tailscale")
	}

	if cfg.DisableVMGC {
		arguments = append(arguments, "--disable-vm-gc")
	}

	err := parts.ValidateNodeLabels("nodeLabels", cfg.NodeLabels)
	if cfg.MaxPods < 1 || cfg.MaxPods > maxPodsLimit {
		err = errors.Join(err,
			fmt.Errorf("maxPods %d: must be 1 or %d, the maximum that Apple's license allows on a Mac", cfg.MaxPods, maxPodsLimit))
	}

	return job{name: "io.hyperfleet.tart-kubelet", arguments: arguments, keepAlive: true, user: cfg.consoleUser()}, err
}

// newProgram returns the part that installs a program. Whenever this part is applied, the part with the label follower, which
// runs the program, is applied again.
func newProgram(label, dest string, content plan.Content, follower string) plan.Part {
	part := parts.NewFile(label, plan.Executable, parts.FileSpec{Path: dest, Mode: 0o755, Owner: rootWheel}, content)
	part.Reapplies = []string{follower}

	return part
}

// newHelper returns the part that installs one of our scripts on the host. Whenever this part is applied, the part with the
// label follower, which runs the script, is applied again.
func newHelper(label, dest string, text plan.Content, follower string) plan.Part {
	part := parts.NewFile(label, plan.File, parts.FileSpec{Path: dest, Mode: 0o755, Owner: rootWheel}, text)
	part.Reapplies = []string{follower}

	return part
}
