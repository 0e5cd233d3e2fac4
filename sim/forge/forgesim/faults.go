// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package forgesim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/forge/control"
)

// parseFaults parses pairs name=value with commas. The names are the JSON names of control.Faults.
// The values are probabilities or durations.
func parseFaults(text string) (control.Faults, error) {
	var faults control.Faults
	fields := map[string]any{}
	for pair := range strings.SplitSeq(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok {
			return faults, fmt.Errorf("parse --faults: %q is not name=value", pair)
		}
		if p, err := strconv.ParseFloat(value, 64); err == nil {
			fields[name] = p
			continue
		}
		d, err := time.ParseDuration(value)
		if err != nil {
			return faults, fmt.Errorf("parse --faults: %s is %q, want a probability or a duration", name, value)
		}
		fields[name] = d
	}
	encoded, err := json.Marshal(fields)
	if err != nil {
		return faults, fmt.Errorf("parse --faults: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(encoded))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&faults); err != nil {
		return faults, fmt.Errorf("parse --faults: %w", err)
	}
	return faults, nil
}
