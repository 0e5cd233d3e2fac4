// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// OSQuery is one step of an update of a host's macOS.
type OSQuery struct {
	// Step is version, offer, install or cancel.
	Step string
	// Version is the desired version. Label is the label under which softwareupdate offers it.
	Version, Label string
	// Attempt distinguishes this installation from earlier ones.
	Attempt string
	// User owns the host's volumes, and Password is the user's password. On Apple silicon, a volume
	// owner must authenticate before an installation (softwareupdate(8): --user, --stdinpass).
	User     string
	Password log.Secret
}

// NewOSQuery returns the script of a step. It prints the line "version VERSION" in any case, and
// may print "offered LABEL", "running MESSAGE" and "failed REASON MESSAGE".
func NewOSQuery(query OSQuery) plan.Part {
	label := "macos-" + query.Step
	part := plan.Part{Label: label, Kind: plan.Script, Apply: plan.Render(readScript("macos"),
		plan.Var{Name: "STEP", Value: query.Step},
		plan.Var{Name: "WANTED", Value: query.Version},
		plan.Var{Name: "LABEL", Value: query.Label},
		plan.Var{Name: "ATTEMPT", Value: query.Attempt},
		plan.Var{Name: "OWNER", Value: query.User},
		plan.Var{Name: "STATE", Value: stateDir + "macos-update"},
		plan.Var{Name: "END", Value: plan.EndMarker})}

	if query.Step == "install" {
		part.Secret = query.Password
	}

	return part
}
