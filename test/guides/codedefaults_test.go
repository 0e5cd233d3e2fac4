// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guides_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/test/defaults"
)

// codeDefault is a default that only the code has: it applies if the field or the setting is empty.
type codeDefault struct {
	setting, constant string
	// page is the reference page, and text is what the page says about the default. %s stands for its value.
	page, text string
}

const (
	apiPage      = "../../docs/reference/api.md"
	fleetAPIPage = "../../docs/reference/fleet-api.md"
	libvirtPage  = "../../docs/guides/libvirt.md"
	windowsPage  = "../../docs/guides/windows.md"
	startPage    = "../../docs/start/runners.md"
)

func listCodeDefaults() []codeDefault {
	const template, pool = "HypervisorMachineTemplate spec.", "RunnerPool spec."

	return []codeDefault{
		{template + "attestation.config.joinTokenTTL", "identity/spire.defaultTTL", apiPage, "a join token must be used. Default: %s."},
		{template + "attestation.config.tpmDevice", "guest.defaultTPMDevice", apiPage, "device file in the machine. Default: %s."},
		{template + "bootstrap.config.forgejo.program", "guest.defaultForgejoProgram", apiPage, "Default: %s for Forgejo"},
		{template + "bootstrap.config.gitea.program", "guest.defaultGiteaProgram", apiPage, "and %s for Gitea."},
		{template + "bootstrap.config.github.apiUrl", "workload/github.publicAPI", apiPage, "base URL of the REST API. Default: %s."},
		{
			template + "bootstrap.config.github.runner.version", "api/hyperfleet/v1alpha1.RunnerVersionFromImage", apiPage,
			"which delays its start. Default: %s.",
		},
		{
			template + "resources.devices[].count", "api/hyperfleet/v1alpha1.DefaultDeviceCount", apiPage,
			"number of these devices. Default: %s.",
		},
		{template + "resources.devices[].type", "api/hyperfleet/v1alpha1.DevicePCI", apiPage, "do not distinguish them. Default: %s."},
		{pool + "demand.polling without webhook", "runners/demand.pollWithoutWebhook", apiPage, "Default: every minute if the pool has no webhook"},
		{pool + "demand.polling with webhook", "runners/demand.pollWithWebhook", apiPage, "every five minutes if it has one"},
		{pool + "labelMatch", "api/hyperfleet/v1alpha1.LabelMatchAll", apiPage, "Size labels do not count. Default: %s."},
		{pool + "workload.config.buildkite.queue", "workload/buildkite.defaultQueue", apiPage, "queue of the agents. Default: %s."},
		{
			"KubevirtNodePool spec.bootstrapNetworkConfig.prefixLengthV6", "networking/alloc.defaultPrefixLengthV6", apiPage,
			"but the guess is %s.",
		},
		{"hyperfleet init cluster on libvirt", "api/hyperfleet/v1alpha1.ProviderLibvirt", libvirtPage, "the HypervisorCluster is named `%s`"},
		{"hyperfleet init cluster on Proxmox VE", "api/hyperfleet/v1alpha1.ProviderProxmox", startPage, "hypervisorClusterRef: {name: %s}"},
		{"hyperfleet init template on libvirt", "cmd/hyperfleet/setup.defaultVolume", libvirtPage, "the template is the volume `%s`"},
		{"hyperfleet init template on Proxmox VE", "cmd/hyperfleet/setup.defaultTemplate", startPage, "proxmox: {templateName: %s"},
		{
			"hyperfleet init template with Windows", "cmd/hyperfleet/setup.defaultWindowsTemplate", windowsPage,
			"If you name no template, it writes `%s`",
		},
		{"api entities[].name_min_len", "platform/entity.DefaultNameMin", fleetAPIPage, "length of names | %s, "},
		{"api entities[].name_max_len", "platform/entity.DefaultNameMax", fleetAPIPage, "length of names | 1, %s |"},
		{"api entities[].on_parent_delete", "platform/entity.Restrict", fleetAPIPage, "([deletion](#deletion)) | `%s` |"},
		{"api server.jwt.configs[].header", "platform/server.authorization", fleetAPIPage, "`header` (`%s`)"},
		{"api server.jwt.configs[].identity_claim", "platform/server.defaultIdentityClaim", fleetAPIPage, "`identity_claim` (`%s`)"},
		{"api size of a list", "platform/store.defaultSize", "../../api/openapi/openapi.yaml", "maximum: 100, default: %s}"},
		{"api limit of changes", "platform/store.defaultChanges", "../../api/openapi/openapi.yaml", "maximum: 1000, default: %s}"},
	}
}

// listRepeatedDefaults maps constants to the line of the list of defaults that has the same default: the code uses them
// for objects and configurations that lack the field.
func listRepeatedDefaults() map[string]string {
	const (
		cluster   = "crd | HypervisorCluster spec."
		bootstrap = "crd | HypervisorMachineTemplate spec.bootstrap.config."
		ids       = cluster + `vmIdRange | {"max":199999,"min":100000}`
		calls     = cluster + "limits.callsPerNode | 4"
		clones    = cluster + "limits.clonesPerStorage | 2"
		timeout   = bootstrap + "httpClient.timeoutSeconds | 30"
	)

	return map[string]string{
		"api/bridge/v1alpha1.DefaultClusterNetwork":          `crd | DPFHCPBridge spec.networking.clusterNetwork | [{"cidr":"10.132.0.0/14"}]`,
		"api/bridge/v1alpha1.DefaultServiceNetwork":          `crd | DPFHCPBridge spec.networking.serviceNetwork | [{"cidr":"172.31.0.0/16"}]`,
		"guest.defaultBuildkiteProgram":                      bootstrap + "buildkite.program | /usr/bin/buildkite-agent",
		"guest.defaultConfigScript":                          bootstrap + "github.runner.configScript | config.sh",
		"guest.defaultGitLabProgram":                         bootstrap + "gitlab.program | /usr/bin/gitlab-runner",
		"guest.defaultInstallPath":                           bootstrap + "github.runner.installPath | /opt/actions-runner",
		"guest.defaultRunScript":                             bootstrap + "github.runner.runScript | run.sh",
		"guest.defaultWorkDir":                               bootstrap + "github.runner.workDir | /tmp/runner-work",
		"hypervisor/kubevirt.defaultIDMax":                   ids,
		"hypervisor/kubevirt.defaultIDMin":                   ids,
		"hypervisor/libvirt.defaultCallsPerNode":             calls,
		"hypervisor/libvirt.defaultClonesPerStorage":         clones,
		"hypervisor/libvirt.defaultIDMax":                    ids,
		"hypervisor/libvirt.defaultIDMin":                    ids,
		"hypervisor/libvirt.defaultPool":                     cluster + "libvirt.hosts[].storagePool | default",
		"hypervisor/proxmox.defaultCallsPerNode":             calls,
		"hypervisor/proxmox.defaultClonesPerStorage":         clones,
		"hypervisor/proxmox.defaultIDMax":                    ids,
		"hypervisor/proxmox.defaultIDMin":                    ids,
		"networking/dns.defaultTTL":                          cluster + "dns.dnsProvider.ttlSeconds | 300",
		"networking/validate.defaultLookupTimeout":           cluster + "dns.validation.timeoutSeconds | 10",
		"networking/validate.defaultTestTimeout":             cluster + "network.validation.timeoutSeconds | 30",
		"platform/adapter/transport/kubernetes.defaultBurst": "config adapter | clients.kubernetes.burst | 200",
		"platform/adapter/transport/kubernetes.defaultQPS":   "config adapter | clients.kubernetes.qps | 100",
		"platform/server.defaultStuckAfter":                  "config api | stuck_after | 30m",
		"platform/store.defaultChangesKept":                  "config api | changes_kept | 24h",
		"platform/store.defaultTimeout":                      "config api | database.query_timeout | 10s",
		"runners/connect.defaultCallsPerNode":                calls,
		"runners/connect.defaultClonesPerStorage":            clones,
		"runners/machineclaim.defaultBootstrapTimeout":       "crd | RunnerPool spec.lifecycle.bootstrapTimeout | 15m",
		"runners/machineclaim.defaultKeep":                   "crd | RunnerPool spec.lifecycle.keepFailed.time | 1h",
		"runners/runnerpool.defaultScaleDownDelay":           "crd | RunnerPool spec.scaling.scaleDownDelay | 5m",
		"workload/buildkite.defaultProgram":                  bootstrap + "buildkite.program | /usr/bin/buildkite-agent",
		"workload/buildkite.defaultTimeout":                  timeout,
		"workload/buildkite.defaultWorkDir":                  bootstrap + "buildkite.workDir | /tmp/runner-work",
		"workload/generic.defaultWorkDir":                    "crd | RunnerPool spec.workload.config.generic.workDir | /tmp/runner-work",
		"workload/gitea.defaultTimeout":                      timeout,
		"workload/github.defaultTimeout":                     timeout,
		"workload/gitlab.defaultTimeout":                     timeout,
	}
}

// listFixedDefaults are constants that users cannot change, and defaults of flags, which the list has as flags.
func listFixedDefaults() []string {
	return strings.Fields(`
		bridge/dpfhcpbridge.defaultAPIPort bridge/hypershift.defaultMaxNodes
		cmd/hyperfleet/doctor.defaultMaxWait cmd/hyperfleet/doctor.defaultTrialTimeout cmd/hyperfleet/provider.defaultTimeout
		cmd/hyperfleet/uninstall.defaultTimeout cmd/hyperfleet/web.defaultAddress guest.defaultPath
		hosts/plan/mac.defaultUser hosts/push.DefaultProbeTimeout hosts/scaleway.defaultTimeout hosts/ssh.DefaultTimeout hosts/ssh.defaultDialTimeout
		hosts/ssh.defaultHandshakeTimeout hosts/ssh.defaultKeepAlive
		hypervisor/conformance/runner.defaultParallel hypervisor/example.defaultMinID hypervisor/kubevirt.defaultNamespace hypervisor/kubevirt.defaultNet hypervisor/libvirt.defaultListInterval
		hypervisor/libvirt.defaultUser hypervisor/proxmox.defaultBusyListAge hypervisor/proxmox.defaultIdleListAge
		hypervisor/proxmox.defaultNICModel hypervisor/proxmox.defaultTaskInterval
		identity/devid.defaultExponent identity/spire.defaultTimeout
		kit/metrics.defaultResetDelay kit/procrun.defaultEphemeralPort kit/procrun.defaultGracePeriod kit/property.defaultRuns
		kit/step.defaultResync kit/step.defaultWriteDelay kit/templates.DefaultSteps kit/watch.defaultInterval
		networking/dns.defaultInterval networking/dns.defaultStalledInterval networking/dns.defaultSweepInterval
		platform/adapter/transport/kubernetes.defaultTimeout platform/broker.defaultFile platform/cel.DefaultCostLimit platform/cel.DefaultTimeout
		platform/client.DefaultTimeout
		runners/demand.DefaultMaxBody runners/demand.DefaultParallel runners/demand.DefaultStartup
		runners/demand.defaultConfirmAfter runners/demand.defaultRetention
		runners/guestapi.defaultRetryAfter
		workload/buildkite.defaultExpiry workload/gitea.defaultRetryAfter workload/github.defaultGroup
		workload/github.defaultGroupName workload/github.defaultSecondaryDelay workload/github.defaultTokenLifetime
		workload/github.defaultWorkDir workload/gitlab.defaultRetryAfter
	`)
}

// TestDefaultsOfCode checks the defaults that the code has and the schemas and configurations do not, that a page has
// them, and that constants with the default of a field have the same default.
func TestDefaultsOfCode(t *testing.T) {
	t.Parallel()

	constants := readConstants(t, "../..")

	var all []defaults.Setting

	known := map[string]bool{}

	for _, d := range listCodeDefaults() {
		known[d.constant] = true
		value := constants[d.constant]
		all = append(all, defaults.Setting{Name: d.setting, Default: value})

		if text := strings.ReplaceAll(d.text, "%s", value); value == "" || !strings.Contains(readFile(t, d.page), text) {
			t.Errorf("%s: the default of %s is %q, and %s does not contain %q", d.constant, d.setting, value, d.page, text)
		}
	}

	defaults.Check(t, "code", all)

	list := readFile(t, "../defaults/testdata/defaults.txt")

	for constant, line := range listRepeatedDefaults() {
		known[constant] = true
		value := constants[constant]
		seconds, _ := time.ParseDuration(value)
		same := regexp.MustCompile(`(^|[:"])(` + regexp.QuoteMeta(value) + `|` + strconv.Itoa(int(seconds.Seconds())) + `)($|[,"}])`)

		if value == "" || !strings.Contains(list, line+"\n") || !same.MatchString(line[strings.LastIndex(line, " | ")+3:]) {
			t.Errorf("%s is %q, want the default of %q in test/defaults/testdata/defaults.txt", constant, value, line)
		}
	}

	for _, constant := range listFixedDefaults() {
		known[constant] = true
	}

	for _, constant := range slices.Sorted(maps.Keys(constants)) {
		_, name, _ := strings.Cut(constant, ".")
		if strings.HasPrefix(strings.ToLower(name), "default") && !known[constant] {
			t.Errorf("%s = %s: a new default: add it to one of the three lists in this file", constant, constants[constant])
		}
	}
}

// readConstants returns the values of the constants in the code of all programs, by FOLDER.NAME.
func readConstants(t *testing.T, root string) map[string]string {
	t.Helper()

	out := map[string]string{}

	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		folder, _ := filepath.Rel(root, filepath.Dir(file))

		switch rel, _ := filepath.Rel(root, file); {
		case entry.IsDir() && slices.Contains([]string{".git", "bin", "dist", "docs", "hack", "sim", "test"}, rel):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go"):
			return nil
		}

		syntax, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			return fmt.Errorf("parse %s: %w", file, err)
		}

		for _, declaration := range syntax.Decls {
			if group, is := declaration.(*ast.GenDecl); is && group.Tok == token.CONST {
				addConstants(out, filepath.ToSlash(folder), group)
			}
		}

		return nil
	})
	if err != nil {
		t.Fatal(err)
	}

	return out
}

func addConstants(out map[string]string, folder string, group *ast.GenDecl) {
	for _, spec := range group.Specs {
		values, is := spec.(*ast.ValueSpec)
		for i := range len(values.Names) {
			if is && i < len(values.Values) {
				out[folder+"."+values.Names[i].Name] = formatConstant(values.Values[i])
			}
		}
	}
}

// formatConstant returns the value of a text, a number or a time. It returns an empty text for other expressions.
func formatConstant(value ast.Expr) string {
	units := map[string]time.Duration{
		"Hour": time.Hour, "Minute": time.Minute, "Second": time.Second, "Millisecond": time.Millisecond,
	}

	switch value := value.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(value.Value); err == nil {
			return text
		}

		return strings.ReplaceAll(value.Value, "_", "")
	case *ast.SelectorExpr:
		return defaults.Normalize(units[value.Sel.Name].String())
	case *ast.BinaryExpr:
		unit, isUnit := value.Y.(*ast.SelectorExpr)
		if number, err := strconv.Atoi(formatConstant(value.X)); err == nil && isUnit {
			return defaults.Normalize((time.Duration(number) * units[unit.Sel.Name]).String())
		}
	}

	return ""
}
