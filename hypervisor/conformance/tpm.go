// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"slices"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// withTPM is the claim of a machine with a TPM, from a template that had one.
func (e *env) withTPM(n int) *claim {
	c := e.claim(n)
	c.spec.Template, c.spec.Shape.TPM = e.TPMTemplate, true

	return c
}

// ownTPM: two machines never share a TPM, neither with each other nor with their template,
// held or not; and a template without one gives machines one, too.
func ownTPM(e *env) {
	if e.TPMsHidden {
		e.Skip("TPMs can't be told apart here")
	}

	p := e.connect(operatorA)

	plain := e.claim(1)
	plain.spec.Shape.TPM = true

	if e.TPMTemplate == (hypervisor.TemplateRef{}) {
		_, err := p.Resolve(e.Context(), plain.spec.Template, plain.spec.Shape)
		e.kind(err, hypervisor.Rejected)

		return
	}

	if _, err := p.Resolve(e.Context(), e.TPMTemplate, plain.spec.Shape); err != nil {
		e.Fatal(err)
	}

	held := e.withTPM(4)
	held.spec.Standby = true
	claims := []*claim{plain, e.withTPM(2), e.withTPM(3), held}

	for _, c := range claims {
		e.mustCreate(p, c)
	}

	release(held)
	e.mustCreate(p, held)

	state := e.Inspect()
	seen := slices.Clone(state.TPMs)

	for _, m := range state.Machines {
		seen = append(seen, m.TPM)
	}

	slices.Sort(seen)

	different := len(slices.Compact(slices.Clone(seen))) == len(seen)
	if len(state.TPMs) == 0 || len(state.Machines) != len(claims) || seen[0] == "" || !different {
		e.Errorf("want a TPM for each of %d machines, and for the template; there are %q", len(claims), seen)
	}

	for _, c := range claims {
		e.mustRemove(p, c)
	}

	e.nothingLeft()
}

func noTPM(e *env) {
	e.mustCreate(e.connect(operatorA), e.claim(1))

	for _, m := range e.Inspect().Machines {
		if m.TPM != "" {
			e.Errorf("machine %d has a TPM that nobody asked for", m.ID)
		}
	}
}

// whileGivingTPM is whileCreating for a machine with a TPM, where there are any.
func whileGivingTPM() scene {
	return scene{
		before: func(e *env, c *claim) {
			if e.TPMTemplate == (hypervisor.TemplateRef{}) {
				e.Skip("machines have no TPM here")
			}

			*c = *e.withTPM(1)
		},
		do: creating,
		after: func(e *env, c *claim) {
			e.resume(c)

			state := e.Inspect()
			if state.Machines[0].TPM == "" || slices.Contains(state.TPMs, state.Machines[0].TPM) {
				e.Errorf("its TPM is %q, those of templates are %q", state.Machines[0].TPM, state.TPMs)
			}
		},
	}
}
