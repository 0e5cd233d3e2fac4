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

// DryRender checks what of a template can be checked without anybody's help: that its
// methods are there, and that its cloud-init texts render for a claim that might be.
func DryRender(template *v1alpha1.HypervisorMachineTemplate, settings Settings) error {
	spec := &template.Spec

	if err := checkMethod(template, settings); err != nil {
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

	load := v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions, Config: &v1alpha1.WorkloadConfig{
		GitHub: &v1alpha1.GitHubActionsConfig{Organization: "rehearsal"},
	}}
	claim := &v1alpha1.MachineClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: template.Namespace, Name: "rehearsal-00000", UID: "00000000-0000-0000-0000-000000000000",
		},
		Spec: v1alpha1.MachineClaimSpec{
			TemplateRef: v1alpha1.LocalObjectReference{Name: template.Name}, WorkloadConfig: load,
		},
	}

	claim.Status.NetworkInfo = rehearsalNetwork(spec.Network)

	if own := Identity(claim, template, settings); own != nil {
		claim.Status.BootstrapInfo = &v1alpha1.BootstrapInfo{Identity: own}
	}

	// A runner of any platform: which it will be, its pool says.
	runner := workload.RunnerSpec{
		Platform: load.Type, Labels: []string{"self-hosted", "rehearsal", "linux"},
		Program: guest.Runner{
			InstallPath: "/opt/actions-runner", WorkDir: "/tmp/runner-work", OS: "linux", Arch: rehearsalArch(template),
		},
	}

	in := Input{
		Claim: claim, Template: template, Settings: settings,
		Runner: runner, Request: RunnerRequest(claim, runner, settings),
		Names: NamesOf(claim, template, &v1alpha1.HypervisorCluster{}, settings.NamespaceInHostname),
	}
	if spec.Bootstrap.Method == v1alpha1.BootstrapRunnerToken {
		in.Credential = workload.Credential{JITConfig: strings.Repeat("A", rehearsalCredential)}
	}

	if Attests(claim) {
		in.Attestation = identity.Attestation{
			JoinToken: "00000000-0000-0000-0000-000000000000", ServerAddress: "spire.example.com:8081",
			TrustBundle: strings.Repeat("A", rehearsalBundle),
		}
	}

	_, err := Seed(in)

	return err
}

// checkMethod refuses bootstrap methods that are not there, or lack what they need.
func checkMethod(template *v1alpha1.HypervisorMachineTemplate, settings Settings) error {
	switch method := template.Spec.Bootstrap.Method; {
	case method == v1alpha1.BootstrapRunnerToken:
		return nil
	case method == v1alpha1.BootstrapCallback && settings.GuestURL == "":
		return errclass.New(errclass.Configuration, "GuestURLMissing",
			"use template %s: bootstrap method %s needs guest.url in the operator's configuration: machines get their credential there",
			template.Name, method)
	case method == v1alpha1.BootstrapCallback && len(settings.ReportKey) == 0:
		return errclass.New(errclass.Configuration, "ReportKeyMissing",
			"use template %s: bootstrap method %s needs the operator's key to make claim codes of", template.Name, method)
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

// rehearsalArch is the architecture of the template's machines, as far as it says one.
func rehearsalArch(template *v1alpha1.HypervisorMachineTemplate) string {
	if config := template.Spec.Bootstrap.Config; config != nil && config.GitHub != nil && config.GitHub.Runner != nil {
		return config.GitHub.Runner.Arch
	}

	return ""
}

// rehearsalNetwork has addresses for documentation in place of those of a pool, with the
// prefix lengths that those would have.
func rehearsalNetwork(network *v1alpha1.MachineNetwork) *v1alpha1.NetworkInfo {
	pool := network.AddressPool()
	if pool == nil {
		return nil
	}

	info := &v1alpha1.NetworkInfo{}

	for _, text := range []string{"192.0.2.1", "2001:db8::1"} {
		address := netip.MustParseAddr(text)
		if bits := rehearsalBits(pool, address.Is4()); bits > 0 {
			info.Addresses = append(info.Addresses, netip.PrefixFrom(address, bits).String())
		}
	}

	return info
}

// rehearsalBits is the prefix length of a pool's addresses of one family: the one that is
// given, that of a network among them, or what covers them and the gateway. It is 0 for a
// family that the pool does not have.
func rehearsalBits(pool *v1alpha1.AddressPool, v4 bool) int {
	var (
		covers netip.Prefix
		found  int
	)

	cover := func(text string) {
		address, err := netip.ParseAddr(strings.TrimSpace(text))
		if err != nil || address.Is4() != v4 || address.IsLinkLocalUnicast() {
			return
		}

		if !covers.IsValid() {
			covers = netip.PrefixFrom(address, address.BitLen())
		}

		for !covers.Contains(address) {
			covers = netip.PrefixFrom(covers.Addr(), covers.Bits()-1).Masked()
		}
	}

	for _, entry := range pool.Addresses {
		if network, err := netip.ParsePrefix(string(entry)); err == nil {
			if network.Addr().Is4() == v4 && !network.IsSingleIP() && found == 0 {
				found = network.Bits()
			}

			entry = v1alpha1.AddressRange(network.Addr().String())
		}

		for end := range strings.SplitSeq(string(entry), "-") {
			cover(end)
		}
	}

	if !covers.IsValid() {
		return 0
	}

	given := int(pool.PrefixLengthV6)
	if v4 {
		given = int(pool.PrefixLengthV4)
	}

	for _, gateway := range pool.Gateway {
		cover(string(gateway))
	}

	return cmp.Or(given, found, covers.Bits())
}

// rehearsalBundle is as long as a trust bundle of two authorities.
const rehearsalBundle = 2 << 10

// rehearsalCredential is as long as a JIT configuration gets, so that user data that
// would be oversized with a real one is found.
const rehearsalCredential = 8 << 10

func checkStatic(template *v1alpha1.HypervisorMachineTemplate) error {
	network := template.Spec.Network
	if network == nil || network.Mode != v1alpha1.NetworkModeStatic || network.Static == nil || network.Static.Pool != nil {
		return nil
	}

	if MaskBits(network.Static.Netmask) < 0 {
		return errclass.New(errclass.Configuration, "NetmaskInvalid",
			"read network.static.netmask of template %s: %q is neither a mask such as 255.255.255.0 nor a prefix length such as 24",
			template.Name, network.Static.Netmask)
	}

	return nil
}
