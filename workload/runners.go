// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// FilterByName returns the runners of that name, most relevant first: busy runners, then online
// runners, then the newest by id.
func FilterByName(runners []Runner, name string) []Runner {
	out := slices.DeleteFunc(slices.Clone(runners), func(r Runner) bool { return r.Name != name })
	slices.SortStableFunc(out, func(a, b Runner) int {
		return cmp.Or(-cmp.Compare(rankRunner(a), rankRunner(b)), -cmp.Compare(ParseID(a.ID), ParseID(b.ID)))
	})

	return out
}

// FilterByPrefix returns the runners whose names begin with prefix, sorted by name.
func FilterByPrefix(runners []Runner, prefix string) []Runner {
	out := slices.DeleteFunc(slices.Clone(runners), func(r Runner) bool { return !strings.HasPrefix(r.Name, prefix) })
	slices.SortStableFunc(out, func(a, b Runner) int { return cmp.Compare(a.Name, b.Name) })

	return out
}

// ParseID parses a numeric id. It returns 0 if the id is not a number.
func ParseID(id string) int64 {
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return 0
	}

	return number
}

func rankRunner(r Runner) int {
	switch {
	case r.Busy:
		return 2
	case r.Online:
		return 1
	default:
		return 0
	}
}
