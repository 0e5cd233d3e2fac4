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

// service is a systemd service (systemd.service(5)). The words of start must not contain a space, a
// quote, a % or a $. Names and labels of nodes can't contain them.
type service struct {
	name, description, start string
	// oneshot is true for a service whose program runs once and ends.
	oneshot bool
	// before is the target that starts only after the service. If it is empty, the service starts after
	// network-online.target.
	before string
}

func (s service) path() string { return "/etc/systemd/system/" + s.name + ".service" }

func (s service) unitVar() plan.Var { return plan.Var{Name: "UNIT", Value: s.name + ".service"} }

// addTo adds the two parts of a service: LABEL-unit, and LABEL, which restarts the service and fails unless the
// process then runs for minRunSeconds. Whenever LABEL is applied, the parts with the labels in followers are
// applied again.
func (s service) addTo(d *plan.Draft, label string, minRunSeconds int, followers ...string) {
	unit := s.unitPart(label + "-unit")
	unit.Reapplies = []string{label}
	d.Add(unit, nil)

	part := s.restartPart(label, minRunSeconds)
	part.Reapplies = followers
	d.Add(part, nil)
}

func (s service) unitPart(label string) plan.Part {
	spec := parts.FileSpec{Path: s.path(), Mode: 0o644, Owner: rootOwner}

	return parts.NewFile(label, plan.Unit, spec, plan.NewText(s.renderUnit()))
}

// restartPart returns a part that restarts the service. If minRunSeconds is not 0, the part fails unless
// the process runs for that many seconds.
func (s service) restartPart(label string, minRunSeconds int) plan.Part {
	probe := "systemctl is-active " + s.name + ".service\nsystemctl is-enabled " + s.name + ".service"
	if label == "firewall" { // an active service does not show that nobody has flushed its rules
		probe += "\nnft list chain inet hyperfleet egress | grep -w drop"
	}

	return parts.NewScript(label, readScript("service"), probe,
		s.unitVar(), plan.Var{Name: "STABLE", Value: strconv.Itoa(minRunSeconds)})
}

// renderUnit returns the unit file. With KillMode=process, the processes of VMs that a daemon has
// started keep running when systemd restarts the daemon.
func (s service) renderUnit() string {
	var b strings.Builder

	fmt.Fprintf(&b, "# Managed by HyperFleet: changes are overwritten.\n[Unit]\nDescription=%s\n", s.description)

	if s.before != "" {
		fmt.Fprintf(&b, "Wants=%[1]s\nBefore=%[1]s\n", s.before)
	} else {
		b.WriteString("Wants=network-online.target\nAfter=network-online.target\nStartLimitIntervalSec=0\n")
	}

	fmt.Fprintf(&b, "\n[Service]\nExecStart=%s\n", s.start)

	if s.oneshot {
		b.WriteString("Type=oneshot\nRemainAfterExit=yes\n")
	} else {
		b.WriteString("Type=exec\nRestart=always\nRestartSec=2\nKillMode=process\n")
	}

	b.WriteString("\n[Install]\nWantedBy=multi-user.target\n")

	return b.String()
}
