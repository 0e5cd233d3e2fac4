// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// injector is the program that injects a fault.
type injector int

const (
	injectorHypervisor injector = iota
	injectorForge
)

// fault is a fault that a simulator injects with a probability.
type fault struct {
	name string
	// simulatorName is the name of the fault in the --faults flag of the simulator.
	simulatorName string
	injector      injector
	probability   float64
}

// knownFaults returns all faults, each with its default probability.
func knownFaults() []fault {
	return []fault{
		{"vm-crash", "vm-crash", injectorHypervisor, 0.1},
		{"clone-lock", "clone-lock", injectorHypervisor, 0.2},
		{"webhooks-lost", "webhookLost", injectorForge, 0.2},
		{"webhooks-duplicated", "webhookDuplicated", injectorForge, 0.3},
		{"webhooks-reordered", "webhookReordered", injectorForge, 0.3},
	}
}

func faultNames() string {
	names := make([]string, 0, len(knownFaults()))
	for _, f := range knownFaults() {
		names = append(names, f.name)
	}

	return strings.Join(names, ", ")
}

// parseFaults parses NAME[=PROBABILITY],... A probability is above 0 and at most 1. Each fault may occur
// only once.
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
	name, value, hasValue := strings.Cut(part, "=")
	known := knownFaults()

	i := slices.IndexFunc(known, func(f fault) bool { return f.name == name })
	if i < 0 {
		return fault{}, fmt.Errorf("unknown fault %q: use one of %s", name, faultNames())
	}

	f := known[i]
	if !hasValue {
		return f, nil
	}

	p, err := strconv.ParseFloat(value, 64)
	if err != nil || !(p > 0 && p <= 1) { // this form also rejects NaN
		return fault{}, fmt.Errorf("%s=%s: write a probability above 0 and at most 1, e.g. %s=0.2", name, value, name)
	}

	f.probability = p

	return f, nil
}

// formatFaults formats the faults of one program as the value of its --faults flag.
func formatFaults(program injector, faults []fault) string {
	var parts []string

	for _, f := range faults {
		if f.injector == program {
			parts = append(parts, f.simulatorName+"="+strconv.FormatFloat(f.probability, 'g', -1, 64))
		}
	}

	return strings.Join(parts, ",")
}
