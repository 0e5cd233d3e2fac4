// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// newTPMClaim returns the claim of a machine with a TPM that is cloned from a template with a TPM.
func (e *env) newTPMClaim(n int) *claim {
	c := e.newClaim(n)
	c.spec.Template, c.spec.Shape.TPM = e.TPMTemplate, true

	return c
}

// testOwnTPM checks that no two machines have the same TPM and that no machine has the TPM of its
// template. This includes standby machines. It also checks that a machine gets a TPM if its template
// has none. If the hypervisor has no TPMs for machines, Resolve must reject the shape.
func testOwnTPM(e *env) {
	if e.TPMsHidden {
		e.Skip("Inspect cannot distinguish the TPMs of this hypervisor")
	}

	p := e.connect(operatorA)

	fromPlainTemplate := e.newClaim(1) // its template has no TPM, so the hypervisor adds one
	fromPlainTemplate.spec.Shape.TPM = true

	if e.TPMTemplate == (hypervisor.TemplateRef{}) {
		_, err := p.Resolve(e.Context(), fromPlainTemplate.spec.Template, fromPlainTemplate.spec.Shape)
		e.assertKind(err, hypervisor.Rejected)

		return
	}

	if _, err := p.Resolve(e.Context(), e.TPMTemplate, fromPlainTemplate.spec.Shape); err != nil {
		e.Fatal(err)
	}

	standby := e.newTPMClaim(4)
	standby.spec.Standby = true
	claims := []*claim{fromPlainTemplate, e.newTPMClaim(2), e.newTPMClaim(3), standby}

	for _, c := range claims {
		e.mustCreate(p, c)
	}

	// Create starts a standby machine if it is called again after the standby has ended.
	endStandby(standby)
	e.mustCreate(p, standby)

	state := e.Inspect()
	seen := slices.Clone(state.TemplateTPMs)

	for _, m := range state.Machines {
		seen = append(seen, m.TPM)
	}

	slices.Sort(seen)

	areDifferent := len(slices.Compact(slices.Clone(seen))) == len(seen)
	if len(state.TemplateTPMs) == 0 || len(state.Machines) != len(claims) || seen[0] == "" || !areDifferent {
		e.Errorf("want a different TPM for each of %d machines and for the template, got %q", len(claims), seen)
	}

	for _, c := range claims {
		e.mustDelete(p, c)
	}

	e.assertNothingLeft()
}

func testNoTPM(e *env) {
	e.mustCreate(e.connect(operatorA), e.newClaim(1))

	for _, m := range e.Inspect().Machines {
		if m.TPM != "" {
			e.Errorf("machine %d has a TPM, but its shape requests none", m.ID)
		}
	}
}

// newTPMCreationScene returns the creation scene for a machine with a TPM. It skips the case if the
// hypervisor has no TPMs for machines.
func newTPMCreationScene() scene {
	return scene{
		setUp: func(e *env, c *claim) {
			if e.TPMTemplate == (hypervisor.TemplateRef{}) {
				e.Skip("this hypervisor has no TPMs for machines")
			}

			*c = *e.newTPMClaim(1)
		},
		newAction: newCreateAction,
		finish: func(e *env, c *claim) {
			e.resumeInNewProcess(c)

			state := e.Inspect()
			if state.Machines[0].TPM == "" || slices.Contains(state.TemplateTPMs, state.Machines[0].TPM) {
				e.Errorf("want a TPM of its own, got %q; the TPMs of the templates are %q", state.Machines[0].TPM, state.TemplateTPMs)
			}
		},
	}
}
