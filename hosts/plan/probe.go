// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// State is what a host said of one part.
type State string

const (
	// Intact is a part that is as it was left.
	Intact State = "intact"
	// Lost is a part that is not.
	Lost State = "lost"
)

// maxProbe bounds what a host may say: each part takes a line.
const maxProbe = 64 << 10

// probePrelude runs a probe in a shell of its own that ends at the first command that
// fails; under if, && or || bash would go on.
const probePrelude = `#!/bin/bash
set -uo pipefail

probe() {
	local label=$1 state=lost code
	(set -e; "probe_${label//-/_}") >/dev/null 2>&1 </dev/null
	code=$?
	if [ "$code" -eq 0 ]; then state=intact; fi
	printf '%s %s\n' "$label" "$state"
}

`

// ProbeScript looks at all parts that are kept, in one call, and prints a line for each:
// "LABEL intact" or "LABEL lost". It changes nothing and fails only where a shell does.
func (p Plan) ProbeScript() string {
	var b strings.Builder

	b.WriteString(probePrelude)

	for _, part := range p.parts {
		if part.Hashed() {
			name := strings.ReplaceAll(part.Label, "-", "_")
			fmt.Fprintf(&b, "probe_%s() {\n%s\n}\nprobe %s\n\n", name, indent(part.Probe), part.Label)
		}
	}

	b.WriteString("exit 0\n")

	return b.String()
}

func indent(text string) string {
	return "\t" + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n\t")
}

// ReadProbe reads what ProbeScript printed at a host. The answer has to be whole: a part
// that is not named, is named twice or is not in the plan is an error, and so is any
// other text, because a shell that was cut short proves nothing.
func (p Plan) ReadProbe(out io.Reader) (map[string]State, error) {
	states := map[string]State{}

	for _, part := range p.parts {
		if part.Hashed() {
			states[part.Label] = ""
		}
	}

	lines := bufio.NewScanner(io.LimitReader(out, maxProbe))
	for lines.Scan() {
		label, said, _ := strings.Cut(lines.Text(), " ")
		state := State(said)

		switch old, known := states[label]; {
		case !known:
			return nil, fmt.Errorf("read probe: %q is no line of this plan's probe", clip(lines.Text()))
		case old != "":
			return nil, fmt.Errorf("read probe: part %s is named twice", label)
		case state != Intact && state != Lost:
			return nil, fmt.Errorf("read probe: part %s is %q: must be intact or lost", label, clip(said))
		}

		states[label] = state
	}

	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read probe: %w", err)
	}

	for _, label := range slices.Sorted(maps.Keys(states)) {
		if states[label] == "" {
			return nil, fmt.Errorf("read probe: part %s is missing: the host's answer was cut short", label)
		}
	}

	return states, nil
}

func clip(text string) string {
	const most = 80
	if len(text) > most {
		return text[:most]
	}

	return text
}

// LostParts gives the labels of the parts that a host has lost, in the plan's order:
// what [Plan.DriftSteps] takes.
func (p Plan) LostParts(states map[string]State) []string {
	var out []string

	for _, part := range p.parts {
		if states[part.Label] == Lost {
			out = append(out, part.Label)
		}
	}

	return out
}
