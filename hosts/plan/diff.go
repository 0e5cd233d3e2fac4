// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// What happened to a part.
type What string

const (
	// Added is a part that the host does not have yet.
	Added What = "added"
	// Changed is a part that the host has in another version.
	Changed What = "changed"
	// Removed is a part that the host has and the plan has not. Nothing undoes it.
	Removed What = "removed"
)

// Change is one difference between what a host should have and what it has.
type Change struct {
	Label string `json:"label"`
	What  What   `json:"what"`
}

// Diff names the parts that differ, in the order of the desired ones and then of the
// actual ones. Order alone is no difference of a part.
func Diff(desired, actual []Digest) []Change {
	find := func(in []Digest, label string) (Digest, bool) {
		i := slices.IndexFunc(in, func(d Digest) bool { return d.Label == label })
		if i < 0 {
			return Digest{}, false
		}

		return in[i], true
	}

	var out []Change

	for _, want := range desired {
		switch have, ok := find(actual, want.Label); {
		case !ok:
			out = append(out, Change{Label: want.Label, What: Added})
		case have != want:
			out = append(out, Change{Label: want.Label, What: Changed})
		}
	}

	for _, have := range actual {
		if _, ok := find(desired, have.Label); !ok {
			out = append(out, Change{Label: have.Label, What: Removed})
		}
	}

	return out
}
