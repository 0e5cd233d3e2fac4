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

// State is the state of one part as the host reported it.
type State string

const (
	// Intact means that the part is as it was pushed.
	Intact State = "intact"
	// Lost means that the part is missing or was changed.
	Lost State = "lost"
)

// maxProbe limits the output of a probe, in bytes. Each part takes one line.
const maxProbe = 64 << 10

// probePrelude defines the function that runs one probe. The probe runs in a subshell with set -e.
// The function does not call it under if, && or ||, because bash would ignore set -e there.
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

// ProbeScript returns a script that prints a line "LABEL STATE" for each hashed part. It changes
// nothing on the host.
func (p Plan) ProbeScript() string {
	var b strings.Builder

	b.WriteString(probePrelude)

	for _, part := range p.parts {
		if part.IsHashed() {
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

// ParseProbe parses the output of ProbeScript. It returns an error unless every hashed part appears
// exactly once.
func (p Plan) ParseProbe(out io.Reader) (map[string]State, error) {
	states := map[string]State{}

	for _, part := range p.parts {
		if part.IsHashed() {
			states[part.Label] = ""
		}
	}

	lines := bufio.NewScanner(io.LimitReader(out, maxProbe))
	for lines.Scan() {
		label, value, _ := strings.Cut(lines.Text(), " ")
		state := State(value)

		switch previous, isKnown := states[label]; {
		case !isKnown:
			return nil, fmt.Errorf("parse probe output: unexpected line %q", truncate(lines.Text()))
		case previous != "":
			return nil, fmt.Errorf("parse probe output: part %s appears twice", label)
		case state != Intact && state != Lost:
			return nil, fmt.Errorf("parse probe output: part %s has state %q: must be intact or lost", label, truncate(value))
		}

		states[label] = state
	}

	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("parse probe output: %w", err)
	}

	for _, label := range slices.Sorted(maps.Keys(states)) {
		if states[label] == "" {
			return nil, fmt.Errorf("parse probe output: part %s is missing: the output was truncated", label)
		}
	}

	return states, nil
}

func truncate(text string) string {
	const maxLength = 80
	if len(text) > maxLength {
		return text[:maxLength]
	}

	return text
}

// LostParts returns the labels of the lost parts, in the order of the plan.
func (p Plan) LostParts(states map[string]State) []string {
	var out []string

	for _, part := range p.parts {
		if states[part.Label] == Lost {
			out = append(out, part.Label)
		}
	}

	return out
}
