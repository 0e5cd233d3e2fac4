// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// owner is the program that injects a fault.
type owner int

const (
	ownerHypervisor owner = iota
	ownerForge
)

// fault is one kind of trouble.
type fault struct {
	name string
	// theirs is the program's own name for it.
	theirs      string
	owner       owner
	probability float64
}

// knownFaults are the faults by name, each with the probability it has when none is
// given.
func knownFaults() []fault {
	return []fault{
		{"vm-crash", "vm-crash", ownerHypervisor, 0.1},
		{"clone-lock", "clone-lock", ownerHypervisor, 0.2},
		{"webhooks-lost", "webhookLost", ownerForge, 0.2},
		{"webhooks-duplicated", "webhookDuplicated", ownerForge, 0.3},
		{"webhooks-reordered", "webhookReordered", ownerForge, 0.3},
	}
}

func faultNames() string {
	names := make([]string, 0, len(knownFaults()))
	for _, f := range knownFaults() {
		names = append(names, f.name)
	}

	return strings.Join(names, ", ")
}

// parseFaults reads NAME[=PROBABILITY],... where a probability lies in (0, 1].
func parseFaults(spec string) ([]fault, error) {
	var out []fault

	for part := range strings.SplitSeq(spec, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}

		f, err := parseFault(part)
		if err != nil {
			return nil, err
		}

		if slices.ContainsFunc(out, func(o fault) bool { return o.name == f.name }) {
			return nil, fmt.Errorf("%q is named twice", f.name)
		}

		out = append(out, f)
	}

	return out, nil
}

func parseFault(part string) (fault, error) {
	name, value, given := strings.Cut(part, "=")
	known := knownFaults()

	i := slices.IndexFunc(known, func(f fault) bool { return f.name == name })
	if i < 0 {
		return fault{}, fmt.Errorf("there is no fault %q: the known ones are %s", name, faultNames())
	}

	f := known[i]
	if !given {
		return f, nil
	}

	p, err := strconv.ParseFloat(value, 64)
	if err != nil || !(p > 0 && p <= 1) { // also refuses NaN
		return fault{}, fmt.Errorf("%s=%s: write a probability above 0 and at most 1, e.g. %s=0.2", name, value, name)
	}

	f.probability = p

	return f, nil
}

// flagFor writes the faults of one program as its --faults flag takes them.
func flagFor(who owner, faults []fault) string {
	var parts []string

	for _, f := range faults {
		if f.owner == who {
			parts = append(parts, f.theirs+"="+strconv.FormatFloat(f.probability, 'g', -1, 64))
		}
	}

	return strings.Join(parts, ",")
}
