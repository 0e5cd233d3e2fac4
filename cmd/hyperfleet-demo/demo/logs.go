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

// ignoredLogKeys returns keys of the operator's log lines that formatLogLine leaves out or prints in
// another place.
func ignoredLogKeys() []string {
	return []string{"time", "level", "msg", "controllerGroup", "controllerKind", "reconcileID", "namespace", "logger"}
}

// formatLogLine formats a JSON log line as plain text. It returns all other lines unchanged.
func formatLogLine(line string) string {
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
		_, isNested := entry[key].(map[string]any)
		if isNested || slices.Contains(ignoredLogKeys(), key) {
			continue
		}

		parts = append(parts, fmt.Sprintf("%s=%v", key, entry[key]))
	}

	return strings.Join(parts, " ")
}
