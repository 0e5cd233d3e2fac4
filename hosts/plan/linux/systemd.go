// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package linux

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/hosts/plan/parts"
)

// service is a service of systemd (systemd.service(5)). No word of start has a space, a
// quote, a % or a $: names and labels of nodes can't.
type service struct {
	name, description, start string
	// once is a service that is done when its program has ended well.
	once   bool
	before string
}

func (s service) path() string { return "/etc/systemd/system/" + s.name + ".service" }

func (s service) unitVar() plan.Var { return plan.Var{Name: "UNIT", Value: s.name + ".service"} }

// add adds the two parts of a service: LABEL-unit, and LABEL, which starts it anew.
func (s service) add(d *plan.Draft, label string, stable int, restarts ...string) {
	unit := s.unit(label + "-unit")
	unit.Reapplies = []string{label}
	d.Add(unit, nil)

	part := s.restart(label, stable)
	part.Reapplies = restarts
	d.Add(part, nil)
}

func (s service) unit(label string) plan.Part {
	return parts.File(label, plan.Unit, parts.Place{Path: s.path(), Mode: 0o644, Owner: root}, plan.Text(s.text()))
}

// restart has systemd run the service anew. With a time in seconds it demands a process
// that lives that long.
func (s service) restart(label string, stable int) plan.Part {
	probe := "systemctl is-active " + s.name + ".service\nsystemctl is-enabled " + s.name + ".service"
	if label == "firewall" {
		probe += "\nnft list chain inet hyperfleet egress | grep -w drop"
	}

	return parts.Script(label, body("service"), probe,
		s.unitVar(), plan.Var{Name: "STABLE", Value: strconv.Itoa(stable)})
}

// text writes the unit. KillMode=process lets machines that the service has started live on
// when it is started anew.
func (s service) text() string {
	var b strings.Builder

	fmt.Fprintf(&b, "# Written by hyperfleet: changes are lost.\n[Unit]\nDescription=%s\n", s.description)

	if s.before != "" {
		fmt.Fprintf(&b, "Wants=%[1]s\nBefore=%[1]s\n", s.before)
	} else {
		b.WriteString("Wants=network-online.target\nAfter=network-online.target\nStartLimitIntervalSec=0\n")
	}

	fmt.Fprintf(&b, "\n[Service]\nExecStart=%s\n", s.start)

	if s.once {
		b.WriteString("Type=oneshot\nRemainAfterExit=yes\n")
	} else {
		b.WriteString("Type=exec\nRestart=always\nRestartSec=2\nKillMode=process\n")
	}

	b.WriteString("\n[Install]\nWantedBy=multi-user.target\n")

	return b.String()
}
