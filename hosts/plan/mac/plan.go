// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"embed"
	"errors"
	"fmt"
	"path"
	"strconv"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
)

//go:embed scripts/*.sh
var scripts embed.FS

const (
	rootWheel = "root:wheel"

	binDir   = "/usr/local/bin/"
	helpers  = "/usr/local/libexec/hyperfleet/"
	stateDir = "/var/db/hyperfleet/"

	kubeconfigPath = "/etc/tart-kubelet/kubeconfig"
	kubeletPath    = binDir + "tart-kubelet"
	tailscalePath  = binDir + "tailscale"
	tailscaledPath = binDir + "tailscaled"
	exporterPath   = binDir + "node_exporter"

	pfConf       = "/etc/pf.conf"
	egressAnchor = "com.apple/000.hyperfleet.egress"
	natAnchor    = "com.apple/000.hyperfleet.nat"
	egressRules  = "/etc/pf.anchors/hyperfleet.egress"

	// vms is the network that macOS gives to machines (vmnet(3), shared mode).
	vms = "192.168.64.0/24"
	// service is the network service of the private network.
	service = "hyperfleet-pn"
	cable   = "en0"

	// stable is for how many seconds a job has to live to count as started. launchd starts
	// what crashes anew after ten.
	stable = 15
)

// draft is what a Mac is made of, in order: the kubelet's part comes last, when all that
// its machines need is there.
func draft(cfg Config) *plan.Draft {
	d := &plan.Draft{}

	for _, render := range []func(*plan.Draft, Config){
		renderSettings, renderConsole, renderTart, renderInterface, renderFirewall, renderVMNAT,
		renderTailscale, renderNodeExporter, renderKubelet,
	} {
		render(d, cfg)
	}

	return d
}

// body gives a script of this package. They are built in: one that is not there gives an
// empty one, which the tests of every script would find.
func body(name string) string {
	text, _ := scripts.ReadFile(path.Join("scripts", name+".sh"))

	return string(text)
}

func renderSettings(d *plan.Draft, cfg Config) {
	d.Add(parts.OnFirstBoot(parts.Script("settings", body("settings"), "", plan.Var{Name: "NAME", Value: cfg.NodeName})), nil)
}

// renderConsole has the host's user logged in at the console (Apple, Virtualization.framework:
// a machine with macOS takes a key of the host, which only a process of that session gets).
// The password, other than everything else here, can't be another one for as long as the host
// is not installed anew.
func renderConsole(d *plan.Draft, cfg Config) {
	part := parts.Script("console", body("console"),
		"test \"$(stat -f %Su /dev/console)\" = "+plan.Quote(cfg.login())+"\ntest -s /etc/kcpassword",
		plan.Var{Name: "LOGIN", Value: cfg.login()}, plan.Var{Name: "END", Value: plan.End})
	part.Secret = cfg.UserPassword
	part.Reapplies = []string{"launchd"} // what ran in another session has ended with it
	d.Add(part, nil)
}

func renderTart(d *plan.Draft, cfg Config) {
	const app = "/opt/tart/tart.app"

	d.Add(plan.Part{
		Label: "tart", Kind: plan.Executable, When: plan.FirstBoot,
		Path: app, Mode: 0o755, Owner: rootWheel, Content: cfg.TartTarball,
		Apply: plan.Render(body("tart"),
			plan.Var{Name: "APP", Value: app},
			plan.Var{Name: "LINK", Value: binDir + "tart"},
			plan.Var{Name: "SHA256", Value: cfg.TartTarball.SHA256()}),
	}, parts.CheckBinary("tartTarball", cfg.TartTarball))
}

func renderInterface(d *plan.Draft, cfg Config) {
	vlan := ""
	if cfg.VMCachePNVLAN != 0 {
		vlan = strconv.Itoa(cfg.VMCachePNVLAN)
	}

	const ours = "networksetup -listVLANs | grep -A 3 -xF 'VLAN User Defined Name: " + service + "'"

	probe := ours + " | grep -xF 'Tag: " + vlan + "'"
	if vlan == "" {
		probe = "test -z \"$(" + ours + ")\""
	}

	d.Add(parts.Script("pn-interface", body("interface"), probe,
		plan.Var{Name: "SERVICE", Value: service},
		plan.Var{Name: "PARENT", Value: cable},
		plan.Var{Name: "VLAN", Value: vlan}), nil)
}

func renderTailscale(d *plan.Draft, cfg Config) {
	if !cfg.Tailnet {
		d.Add(jobOff("tailscale", tailscaleJob()), nil)

		return
	}

	d.Add(program("tailscale-cli", tailscalePath, cfg.TailscaleBinary, "tailscale"),
		parts.CheckBinary("tailscaleBinary", cfg.TailscaleBinary))
	d.Add(program("tailscaled", tailscaledPath, cfg.TailscaledBinary, "tailscaled-job"),
		parts.CheckBinary("tailscaledBinary", cfg.TailscaledBinary))
	addJob(d, "tailscaled", tailscaleJob(), stable, "tailscale")

	d.Add(parts.Tailscale(parts.Tailnet{
		CLI: tailscalePath, Hostname: cfg.NodeName, Tags: cfg.TailscaleTags,
		AcceptRoutes: cfg.TailscaleAcceptRoutes, AuthKey: cfg.TailscaleAuthKey,
	}), parts.CheckTags("tailscaleTags", cfg.TailscaleTags))
}

func tailscaleJob() job {
	return job{
		name:      "io.hyperfleet.tailscaled",
		arguments: []string{tailscaledPath, "--statedir=/var/db/tailscale"},
		keep:      true,
	}
}

func renderNodeExporter(d *plan.Draft, cfg Config) {
	cli := ""
	if cfg.Tailnet {
		cli = tailscalePath
	}

	run := helpers + "node-exporter"

	d.Add(program("node-exporter", exporterPath, cfg.NodeExporterBinary, "node-exporter-job"),
		parts.CheckBinary("nodeExporterBinary", cfg.NodeExporterBinary))
	d.Add(helper("node-exporter-run", run, parts.ExporterRun(exporterPath, cli), "node-exporter-job"), nil)
	addJob(d, "node-exporter", job{name: "io.hyperfleet.node-exporter", arguments: []string{run}, keep: true}, stable)
}

func renderKubelet(d *plan.Draft, cfg Config) {
	place := parts.Place{Path: kubeconfigPath, Mode: 0o600, Owner: cfg.login() + ":staff"}
	kubeconfig := parts.Secret(plan.Kubeconfig, place, cfg.Kubeconfig)
	kubeconfig.Reapplies = []string{"launchd"}
	d.Add(kubeconfig, nil)

	d.Add(kubeletInstall(cfg), parts.CheckBinary("tartKubeletBinary", cfg.TartKubeletBinary))

	kubelet, err := kubeletJob(cfg)
	plist := kubelet.unit("launchd-plist")
	plist.Reapplies = []string{"launchd"}
	d.Add(plist, err)
	d.Add(kubelet.start("launchd", stable), nil)
}

// kubeletInstall differs from other programs in that the host signs it.
func kubeletInstall(cfg Config) plan.Part {
	stamp := stateDir + "tart-kubelet.sums"
	sum := cfg.TartKubeletBinary.SHA256()
	place := parts.Place{Path: kubeletPath, Mode: 0o755, Owner: rootWheel}
	quoted := plan.Quote(place.Path)

	return plan.Part{
		Label: "tart-kubelet-install", Kind: plan.Executable, When: plan.Always,
		Path: place.Path, Mode: place.Mode, Owner: place.Owner, Content: cfg.TartKubeletBinary,
		Apply: plan.Render(body("kubelet"), append(place.Vars(),
			plan.Var{Name: "STAMP", Value: stamp},
			plan.Var{Name: "SHA256", Value: sum})...),
		Probe: "read -r pushed signed <" + stamp + "\n" +
			"test \"$pushed\" = " + plan.Quote(sum) + "\n" +
			"sum=$(sha256sum <" + quoted + " || shasum -a 256 <" + quoted + ")\n" +
			"test \"${sum%% *}\" = \"$signed\"",
		Reapplies: []string{"launchd"},
	}
}

func kubeletJob(cfg Config) (job, error) {
	arguments := []string{
		kubeletPath,
		"--node-name=" + cfg.NodeName,
		"--provider-id=" + cfg.ProviderID,
		"--kubeconfig=" + kubeconfigPath,
		"--host-cpu=" + strconv.Itoa(cfg.HostCPU),
		"--host-memory-mb=" + strconv.Itoa(cfg.HostMemoryMB),
		"--max-pods=" + strconv.Itoa(cfg.MaxPods),
		"--node-labels=" + labels(cfg.NodeLabels),
	}

	// Without a tailnet the kubelet finds the host's address by itself.
	if cfg.Tailnet {
		arguments = append(arguments, "--node-ip-source=tailscale")
	}

	if cfg.DisableVMGC {
		arguments = append(arguments, "--disable-vm-gc")
	}

	err := parts.CheckNodeLabels("nodeLabels", cfg.NodeLabels)
	if cfg.MaxPods < 1 || cfg.MaxPods > mostPods {
		err = errors.Join(err,
			fmt.Errorf("maxPods %d: must be 1 or %d, the most that Apple's licence allows on a Mac", cfg.MaxPods, mostPods))
	}

	return job{name: "io.hyperfleet.tart-kubelet", arguments: arguments, keep: true, login: cfg.login()}, err
}

// program is a part that is a program, and what is started anew after it.
func program(label, dest string, content plan.Content, restarts string) plan.Part {
	part := parts.File(label, plan.Executable, parts.Place{Path: dest, Mode: 0o755, Owner: rootWheel}, content)
	part.Reapplies = []string{restarts}

	return part
}

// helper is a script of ours that stays at the host.
func helper(label, dest string, text plan.Content, restarts string) plan.Part {
	part := parts.File(label, plan.File, parts.Place{Path: dest, Mode: 0o755, Owner: rootWheel}, text)
	part.Reapplies = []string{restarts}

	return part
}
