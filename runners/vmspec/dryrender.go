// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec

import (
	"cmp"
	"net/netip"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/identity"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/workload"
)

// DryRender checks a template without API calls: whether this operator supports its methods, and whether
// its cloud-init texts render for a sample claim.
func DryRender(template *v1alpha1.HypervisorMachineTemplate, settings Settings) error {
	spec := &template.Spec

	if err := checkMethod(template, settings); err != nil {
		return err
	}

	if err := CheckOS(template); err != nil {
		return err
	}

	if err := checkAttestation(template, settings); err != nil {
		return err
	}

	if err := checkStatic(template); err != nil {
		return err
	}

	if spec.Bootstrap.Delivery == v1alpha1.DeliveryDownload && settings.GuestURL == "" {
		return errclass.New(errclass.Configuration, "GuestURLMissing",
			"use template %s: delivery download needs guest.url in the operator's configuration", template.Name)
	}

	workloadConfig := v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{
		GitHub: &v1alpha1.GitHubActionsConfig{Organization: "rehearsal"},
	}}
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: template.Namespace, Name: "rehearsal-00000", UID: "00000000-0000-0000-0000-000000000000",
		},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: template.Name}, WorkloadConfig: workloadConfig,
		},
	}

	claim.Status.NetworkInfo = dryRenderNetwork(spec.Network)

	if machineIdentity := NewMachineIdentity(claim, template, settings); machineIdentity != nil {
		claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{Identity: machineIdentity}
	}

	// The platform does not matter here, because the pool selects it later.
	runner := workload.RunnerSpec{
		Platform: workloadConfig.Type, Labels: []string{"self-hosted", "rehearsal", "linux"},
		Program: guest.Runner{
			InstallPath: "/opt/actions-runner", WorkDir: "/tmp/runner-work", OS: "linux", Arch: dryRenderArch(template),
		},
	}

	in := Input{
		Claim: claim, Template: template, Settings: settings,
		Runner: runner, Request: NewRunnerRequest(claim, runner, settings),
		Names: NewNames(claim, template, &v1alpha1.HypervisorCluster{}, settings.NamespaceInHostname),
	}
	if spec.Bootstrap.Method == v1alpha1.BootstrapRunnerToken {
		in.Credential = workload.Credential{JITConfig: strings.Repeat("A", dryRenderCredentialSize)}
	}

	if HasIdentity(claim) {
		in.Attestation = identity.Attestation{
			JoinToken: "00000000-0000-0000-0000-000000000000", ServerAddress: "spire.example.com:8081",
			TrustBundle: strings.Repeat("A", dryRenderBundleSize),
		}
	}

	_, err := RenderSeed(in)

	return err
}

// checkMethod returns an error if the bootstrap method is unknown, or the operator's configuration does not
// support it.
func checkMethod(template *v1alpha1.HypervisorMachineTemplate, settings Settings) error {
	switch method := template.Spec.Bootstrap.Method; {
	case method == v1alpha1.BootstrapRunnerToken:
		return nil
	case method == v1alpha1.BootstrapCallback && settings.GuestURL == "":
		return errclass.New(errclass.Configuration, "GuestURLMissing",
			"use template %s: bootstrap method %s needs guest.url in the operator's configuration, "+
				"from which machines get their credential",
			template.Name, method)
	case method == v1alpha1.BootstrapCallback && len(settings.ReportKey) == 0:
		return errclass.New(errclass.Configuration, "ReportKeyMissing",
			"use template %s: bootstrap method %s needs the operator's key from which claim codes are derived", template.Name, method)
	case method == v1alpha1.BootstrapCallback:
		return nil
	case method == v1alpha1.BootstrapExternalSecrets:
		return checkSecrets(template)
	default:
		return errclass.New(errclass.Configuration, ReasonBootstrapMethodUnavailable,
			"use template %s: bootstrap method %q is not available in this version: use %s, %s or %s",
			template.Name, method, v1alpha1.BootstrapRunnerToken, v1alpha1.BootstrapCallback, v1alpha1.BootstrapExternalSecrets)
	}
}

// dryRenderArch returns the architecture of the template's GitHub runner, or "" if the template names none.
func dryRenderArch(template *v1alpha1.HypervisorMachineTemplate) string {
	if config := template.Spec.Bootstrap.Config; config != nil && config.GitHub != nil && config.GitHub.Runner != nil {
		return config.GitHub.Runner.Arch
	}

	return ""
}

// dryRenderNetwork returns documentation addresses in place of addresses of the template's pool. They have
// the same prefix lengths as addresses of the pool. It returns nil if the template has no pool.
func dryRenderNetwork(network *v1alpha1.MachineNetwork) *v1alpha1.NetworkInfo {
	pool := network.AddressPool()
	if pool == nil {
		return nil
	}

	info := &v1alpha1.NetworkInfo{}

	for _, text := range []string{"192.0.2.1", "2001:db8::1"} {
		address := netip.MustParseAddr(text)
		if bits := dryRenderPrefixLength(pool, address.Is4()); bits > 0 {
			info.Addresses = append(info.Addresses, netip.PrefixFrom(address, bits).String())
		}
	}

	return info
}

// dryRenderPrefixLength returns the prefix length of a pool's addresses of one family: the configured
// prefix length, or else that of the first network in the pool, or else that of the smallest network that
// holds all addresses and the gateway. It returns 0 if the pool has no address of the family.
func dryRenderPrefixLength(pool *v1alpha1.AddressPool, isIPv4 bool) int {
	var (
		covering    netip.Prefix
		networkBits int
	)

	cover := func(text string) {
		address, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || address.Is4() != isIPv4 || address.IsLinkLocalUnicast() {
			return
		}

		if !covering.IsValid() {
			covering = netip.PrefixFrom(address, address.BitLen())
		}

		for !covering.Contains(address) {
			covering = netip.PrefixFrom(covering.Addr(), covering.Bits()-1).Masked()
		}
	}

	for _, entry := range pool.Addresses {
		if network, err := netip.ParsePrefix(string(entry)); err == nil {
			if network.Addr().Is4() == isIPv4 && !network.IsSingleIP() && networkBits == 0 {
				networkBits = network.Bits()
			}

			entry = v1alpha1.AddressRange(network.Addr().String())
		}

		for end := range strings.SplitSeq(string(entry), "-") {
			cover(end)
		}
	}

	if !covering.IsValid() {
		return 0
	}

	configured := int(pool.PrefixLengthV6)
	if isIPv4 {
		configured = int(pool.PrefixLengthV4)
	}

	for _, gateway := range pool.Gateway {
		cover(string(gateway))
	}

	return cmp.Or(configured, networkBits, covering.Bits())
}

// dryRenderBundleSize is the typical size of a trust bundle with two CAs, in characters.
const dryRenderBundleSize = 2 << 10

// dryRenderCredentialSize is the maximum size of a just-in-time config, in characters. With it DryRender
// finds user data that would be too large with a real credential.
const dryRenderCredentialSize = 8 << 10

// checkStatic checks the netmask of a template with a static address.
func checkStatic(template *v1alpha1.HypervisorMachineTemplate) error {
	network := template.Spec.Network
	if network == nil || network.Mode != v1alpha1.NetworkModeStatic || network.Static == nil || network.Static.Pool != nil {
		return nil
	}

	if ParseNetmask(network.Static.Netmask) < 0 {
		return errclass.New(errclass.Configuration, "NetmaskInvalid",
			"parse spec.network.static.netmask of template %s: %q is neither a mask such as 255.255.255.0 nor a prefix length such as 24",
			template.Name, network.Static.Netmask)
	}

	return nil
}
