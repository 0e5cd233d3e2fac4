// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import "slices"

// ChangeKind says how a part differs.
type ChangeKind string

const (
	// Added is a part that the host does not have yet.
	Added ChangeKind = "added"
	// Changed is a part of which the host has another version.
	Changed ChangeKind = "changed"
	// Removed is a part that the host has but the plan does not. It stays on the host.
	Removed ChangeKind = "removed"
)

// Change is one difference between the desired and the actual parts of a host.
type Change struct {
	Label string     `json:"label"`
	Kind  ChangeKind `json:"what"`
}

// Diff returns the parts that differ: first in the order of the desired parts, then in the order of
// the actual parts. A different order alone is not a difference.
func Diff(desired, actual []Digest) []Change {
	find := func(digests []Digest, label string) (Digest, bool) {
		i := slices.IndexFunc(digests, func(d Digest) bool { return d.Label == label })
		if i < 0 {
			return Digest{}, false
		}

		return digests[i], true
	}

	var out []Change

	for _, digest := range desired {
		switch existing, ok := find(actual, digest.Label); {
		case !ok:
			out = append(out, Change{Label: digest.Label, Kind: Added})
		case existing != digest:
			out = append(out, Change{Label: digest.Label, Kind: Changed})
		}
	}

	for _, digest := range actual {
		if _, ok := find(desired, digest.Label); !ok {
			out = append(out, Change{Label: digest.Label, Kind: Removed})
		}
	}

	return out
}

// FindDrifted returns the labels of the parts that a host needs: the parts whose digest differs from the
// applied one, and the lost parts. Both inputs may be nil. Without applied digests the state of the host is
// unknown, so all parts that are always applied count as drifted.
func (p Plan) FindDrifted(applied []Digest, lost []string) []string {
	stale := map[string]bool{}
	for _, change := range Diff(p.Digests(), applied) {
		stale[change.Label] = true
	}

	var out []string

	for _, part := range p.parts {
		if part.IsHashed() && (stale[part.Label] || slices.Contains(lost, part.Label)) {
			out = append(out, part.Label)
		}
	}

	return out
}
