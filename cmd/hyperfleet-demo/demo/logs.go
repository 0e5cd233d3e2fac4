// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// noise are keys of the operator's log lines that say nothing to who reads a few of them.
func noise() []string {
	return []string{"time", "level", "msg", "controllerGroup", "controllerKind", "reconcileID", "namespace", "logger"}
}

// readable writes one line of a log of JSON objects for people, and leaves any other line
// as it is.
func readable(line string) string {
	var entry map[string]any
	if json.Unmarshal([]byte(line), &entry) != nil || entry["msg"] == nil {
		return line
	}

	parts := []string{}

	if at, err := time.Parse(time.RFC3339Nano, fmt.Sprint(entry["time"])); err == nil {
		parts = append(parts, at.Format("15:04:05.000"))
	}

	parts = append(parts, fmt.Sprint(entry["level"]), fmt.Sprint(entry["msg"]))

	for _, key := range slices.Sorted(maps.Keys(entry)) {
		_, nested := entry[key].(map[string]any)
		if nested || slices.Contains(noise(), key) {
			continue
		}

		parts = append(parts, fmt.Sprintf("%s=%v", key, entry[key]))
	}

	return strings.Join(parts, " ")
}
