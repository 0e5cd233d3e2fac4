// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"errors"
	"fmt"
	"strings"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
)

// renderFirewall adds the firewall that keeps machines away from the networks of the host's owner.
func renderFirewall(d *plan.Draft, cfg Config) {
	loader := helperDir + "firewall"
	text, err := renderAnchor(cfg)

	spec := parts.FileSpec{Path: egressRules, Mode: 0o644, Owner: rootWheel}
	rules := parts.NewFile("firewall-anchor", plan.File, spec, plan.NewText(text))
	rules.Reapplies = []string{"firewall"}
	d.Add(rules, err)

	d.Add(newHelper("firewall-load", loader, plan.NewText(plan.Render(readScript("pf"),
		plan.Var{Name: "ANCHOR", Value: egressAnchor},
		plan.Var{Name: "RULES", Value: egressRules},
		plan.Var{Name: "CONF", Value: pfConf})), "firewall"), nil)

	d.Add(parts.NewScript("firewall", readScript("firewall"),
		"grep -qxF '# BEGIN hyperfleet' "+pfConf+"\n"+
			"pfctl -q -s info | grep '^Status: Enabled'\n"+
			"pfctl -q -s rules | grep -F 'anchor \"com.apple/*\"'\n"+
			// pf does not print comments and lists, so the probe looks for a rule.
			"pfctl -q -a "+egressAnchor+" -s rules | grep '^block drop in quick'",
		plan.Var{Name: "ANCHOR", Value: egressAnchor},
		plan.Var{Name: "RULES", Value: egressRules},
		plan.Var{Name: "CONF", Value: pfConf},
		plan.Var{Name: "LOADER", Value: loader}), nil)

	// A reload of pf.conf does not flush our anchor, but pf may be disabled after a boot.
	addJob(d, "firewall", job{name: "io.hyperfleet.firewall", arguments: []string{loader}}, 0)
}

// renderAnchor returns the rules of the egress anchor: first the networks that are allowed, then
// those that are denied. The first matching rule decides.
func renderAnchor(cfg Config) (string, error) {
	var b strings.Builder

	fmt.Fprintf(&b, "# Managed by HyperFleet: changes are overwritten.\nvms = %q\n", vmNetwork)

	var errs []error

	allow := func(field, destination, format string) {
		if destination == "" {
			return
		}

		err := parts.ValidateCIDR(field, destination)
		if field == "vmClusterDNSIP" {
			err = parts.ValidateIPv4(field, destination)
		}

		errs = append(errs, err)
		fmt.Fprintf(&b, format, destination)
	}

	allow("vmClusterDNSIP", cfg.VMClusterDNSIP, "pass in quick inet proto { tcp, udp } from $vms to %s port 53\n")
	allow("vmKuraEgressCIDR", cfg.VMKuraEgressCIDR, "pass in quick inet from $vms to %s\n")
	allow("vmCachePNCIDR", cfg.VMCachePNCIDR, "pass in quick inet from $vms to %s\n")

	for _, network := range parts.DeniedNetworks() {
		fmt.Fprintf(&b, "block drop in quick inet from $vms to %s\n", network)
	}

	if err := errors.Join(errs...); err != nil {
		return "", err
	}

	return b.String(), nil
}

// renderVMNAT adds the address translation for machines. A job renews it every minute.
func renderVMNAT(d *plan.Draft, _ Config) {
	const everyMinute = 60

	runPath := helperDir + "vmnat"

	d.Add(newHelper("vmnat-run", runPath, plan.NewText(plan.Render(readScript("vmnat"),
		plan.Var{Name: "ANCHOR", Value: natAnchor},
		plan.Var{Name: "RULES", Value: stateDir + "nat.rules"},
		plan.Var{Name: "SERVICE", Value: networkService},
		plan.Var{Name: "VMS", Value: vmNetwork})), "vmnat"), nil)

	d.Add(parts.NewScript("vmnat", "main() { "+plan.Quote(runPath)+"; }",
		"test -n \"$(pfctl -q -a "+natAnchor+" -s nat)\""), nil)

	addJob(d, "vmnat", job{name: "io.hyperfleet.vmnat", arguments: []string{runPath}, interval: everyMinute}, 0)
}
