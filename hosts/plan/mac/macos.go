// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package mac

import (
	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// OSStepParams are the parameters of one step of an update of a host's macOS.
type OSStepParams struct {
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

// NewOSStep returns the script of a step. It prints the line "version VERSION" in any case, and
// may print "offered LABEL", "running MESSAGE" and "failed REASON MESSAGE".
func NewOSStep(params OSStepParams) plan.Part {
	label := "macos-" + params.Step
	part := plan.Part{Label: label, Kind: plan.Script, Apply: plan.Render(readScript("macos"),
		plan.Var{Name: "STEP", Value: params.Step},
		plan.Var{Name: "WANTED", Value: params.Version},
		plan.Var{Name: "LABEL", Value: params.Label},
		plan.Var{Name: "ATTEMPT", Value: params.Attempt},
		plan.Var{Name: "OWNER", Value: params.User},
		plan.Var{Name: "STATE", Value: stateDir + "macos-update"},
		plan.Var{Name: "END", Value: plan.EndMarker})}

	if params.Step == "install" {
		part.Secret = params.Password
	}

	return part
}
