// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"errors"
	"fmt"
)

// Draft is a plan that is being rendered. It holds the parts, and the errors of those that can't be
// rendered.
type Draft struct {
	parts []Part
	errs  map[string]error
}

// Add appends a part, and the error of its rendering if there is one.
func (d *Draft) Add(part Part, err error) {
	if err != nil {
		if d.errs == nil {
			d.errs = map[string]error{}
		}

		d.errs[part.Label] = fmt.Errorf("render %s: %w", part.Label, err)
	}

	d.parts = append(d.parts, part)
}

// Plan returns the plan, or the errors of all parts that could not be rendered.
func (d *Draft) Plan() (Plan, error) {
	var errs []error

	for _, part := range d.parts {
		errs = append(errs, d.errs[part.Label])
	}

	if err := errors.Join(errs...); err != nil {
		return Plan{}, err
	}

	return New(d.parts...)
}

func (d *Draft) digests() []Digest {
	var out []Digest

	for _, part := range d.parts {
		switch err := d.errs[part.Label]; {
		case !part.IsHashed():
		case err != nil:
			out = append(out, newDigest(part.Label, "ERROR:"+err.Error()))
		default:
			out = append(out, part.Digest())
		}
	}

	return out
}
