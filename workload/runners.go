// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// Named gives the runners of that name, the one that matters first: the busy one, else one that
// is online, else the newest by its id.
func Named(runners []Runner, name string) []Runner {
	out := slices.DeleteFunc(slices.Clone(runners), func(r Runner) bool { return r.Name != name })
	slices.SortStableFunc(out, func(a, b Runner) int {
		return cmp.Or(-cmp.Compare(liveness(a), liveness(b)), -cmp.Compare(Number(a.ID), Number(b.ID)))
	})

	return out
}

// Prefixed gives the runners whose names begin with prefix, by name.
func Prefixed(runners []Runner, prefix string) []Runner {
	out := slices.DeleteFunc(slices.Clone(runners), func(r Runner) bool { return !strings.HasPrefix(r.Name, prefix) })
	slices.SortStableFunc(out, func(a, b Runner) int { return cmp.Compare(a.Name, b.Name) })

	return out
}

// Number reads an id of a platform whose ids are numbers; 0 where it is none.
func Number(id string) int64 {
	number, err := strconv.ParseInt(id, 10, 64)
	if err != nil {
		return 0
	}

	return number
}

func liveness(r Runner) int {
	switch {
	case r.Busy:
		return 2
	case r.Online:
		return 1
	default:
		return 0
	}
}
