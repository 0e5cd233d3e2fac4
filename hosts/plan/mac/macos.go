// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Question is one about a host's macOS.
type Question struct {
	// Step is version, offer, install or cancel.
	Step string
	// Version that is wanted, and Label under which softwareupdate offers it.
	Version, Label string
	// Attempt tells this installation from those before.
	Attempt string
	// User owns the host's volumes, and Password is that user's: Apple silicon asks an owner of
	// them before it installs (softwareupdate(8): --user, --stdinpass).
	User     string
	Password log.Secret
}

// AskMacOS is the script that asks. It prints lines: "version VERSION" always, "offered LABEL",
// "running WORDS" and "failed REASON WORDS".
func AskMacOS(ask Question) plan.Part {
	label := "macos-" + ask.Step
	part := plan.Part{Label: label, Kind: plan.Script, Apply: plan.Render(body("macos"),
		plan.Var{Name: "STEP", Value: ask.Step},
		plan.Var{Name: "WANTED", Value: ask.Version},
		plan.Var{Name: "LABEL", Value: ask.Label},
		plan.Var{Name: "ATTEMPT", Value: ask.Attempt},
		plan.Var{Name: "OWNER", Value: ask.User},
		plan.Var{Name: "STATE", Value: stateDir + "macos-update"},
		plan.Var{Name: "END", Value: plan.End})}

	if ask.Step == "install" {
		part.Secret = ask.Password
	}

	return part
}
