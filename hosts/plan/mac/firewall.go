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

// renderFirewall keeps machines away from the networks of the host's owner.
func renderFirewall(d *plan.Draft, cfg Config) {
	loader := helpers + "firewall"
	text, err := anchor(cfg)

	rules := parts.File("firewall-anchor", plan.File, parts.Place{Path: egressRules, Mode: 0o644, Owner: rootWheel}, plan.Text(text))
	rules.Reapplies = []string{"firewall"}
	d.Add(rules, err)

	d.Add(helper("firewall-load", loader, plan.Text(plan.Render(body("pf"),
		plan.Var{Name: "ANCHOR", Value: egressAnchor},
		plan.Var{Name: "RULES", Value: egressRules},
		plan.Var{Name: "CONF", Value: pfConf})), "firewall"), nil)

	d.Add(parts.Script("firewall", body("firewall"),
		"grep -qxF '# BEGIN hyperfleet' "+pfConf+"\n"+
			"pfctl -q -s info | grep '^Status: Enabled'\n"+
			"pfctl -q -s rules | grep -F 'anchor \"com.apple/*\"'\n"+
			// Comments and lists are gone from what is in force, but a rule is.
			"pfctl -q -a "+egressAnchor+" -s rules | grep '^block drop in quick'",
		plan.Var{Name: "ANCHOR", Value: egressAnchor},
		plan.Var{Name: "RULES", Value: egressRules},
		plan.Var{Name: "CONF", Value: pfConf},
		plan.Var{Name: "LOADER", Value: loader}), nil)

	// Whoever loads all of pf.conf flushes nothing of ours, but pf may be off after a boot.
	addJob(d, "firewall", job{name: "io.hyperfleet.firewall", arguments: []string{loader}}, 0)
}

// anchor is the text of the rules. First come the ways that are open, then what is shut;
// the first that fits decides.
func anchor(cfg Config) (string, error) {
	var b strings.Builder

	fmt.Fprintf(&b, "# Written by hyperfleet: changes are lost.\nvms = %q\n", vms)

	var errs []error

	open := func(field, cidr, form string) {
		if cidr == "" {
			return
		}

		err := parts.CheckCIDR(field, cidr)
		if field == "vmClusterDNSIP" {
			err = parts.CheckIPv4(field, cidr)
		}

		errs = append(errs, err)
		fmt.Fprintf(&b, form, cidr)
	}

	open("vmClusterDNSIP", cfg.VMClusterDNSIP, "pass in quick inet proto { tcp, udp } from $vms to %s port 53\n")
	open("vmKuraEgressCIDR", cfg.VMKuraEgressCIDR, "pass in quick inet from $vms to %s\n")
	open("vmCachePNCIDR", cfg.VMCachePNCIDR, "pass in quick inet from $vms to %s\n")

	for _, network := range parts.Shut() {
		fmt.Fprintf(&b, "block drop in quick inet from $vms to %s\n", network)
	}

	if err := errors.Join(errs...); err != nil {
		return "", err
	}

	return b.String(), nil
}

// renderVMNAT gives machines their way out, again and again.
func renderVMNAT(d *plan.Draft, _ Config) {
	const everyMinute = 60

	run := helpers + "vmnat"

	d.Add(helper("vmnat-run", run, plan.Text(plan.Render(body("vmnat"),
		plan.Var{Name: "ANCHOR", Value: natAnchor},
		plan.Var{Name: "RULES", Value: stateDir + "nat.rules"},
		plan.Var{Name: "SERVICE", Value: service},
		plan.Var{Name: "VMS", Value: vms})), "vmnat"), nil)

	d.Add(parts.Script("vmnat", "main() { "+plan.Quote(run)+"; }",
		"test -n \"$(pfctl -q -a "+natAnchor+" -s nat)\""), nil)

	addJob(d, "vmnat", job{name: "io.hyperfleet.vmnat", arguments: []string{run}, interval: everyMinute}, 0)
}
