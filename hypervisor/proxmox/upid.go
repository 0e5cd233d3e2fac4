// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// UPID is the parsed identifier of a task: UPID:node:pid:pstart:starttime:type:id:user:. The three numbers
// are hexadecimal (PVE::Tools::upid_decode).
type UPID struct {
	Node  string
	Start time.Time
	// Ticks is the start of the task's process in clock ticks since the node's boot.
	Ticks uint64
	// Type is the type of the task, such as qmclone. ID is the ID of the task's object. For qmclone, ID is
	// the ID of the template.
	Type, ID string
	// User contains the realm, and the token if there is one.
	User string
}

const upidFields = 9

// ParseUPID parses the identifier of a task.
func ParseUPID(s string) (UPID, error) {
	parts := strings.Split(s, ":")
	if len(parts) != upidFields || parts[0] != "UPID" || parts[upidFields-1] != "" {
		return UPID{}, fmt.Errorf("parse UPID %.120q: it must be \"UPID:node:pid:pstart:starttime:type:id:user:\", nine parts", s)
	}

	if _, err := strconv.ParseUint(parts[2], 16, 64); err != nil {
		return UPID{}, fmt.Errorf("parse UPID %.120q: %q is not hexadecimal", s, parts[2])
	}

	ticks, err := strconv.ParseUint(parts[3], 16, 64)
	if err != nil {
		return UPID{}, fmt.Errorf("parse UPID %.120q: %q is not hexadecimal", s, parts[3])
	}

	start, err := strconv.ParseUint(parts[4], 16, 40)
	if err != nil {
		return UPID{}, fmt.Errorf("parse UPID %.120q: start %q is not hexadecimal", s, parts[4])
	}

	if parts[1] == "" || strings.ContainsAny(parts[1], "/?#%") || parts[5] == "" {
		return UPID{}, fmt.Errorf("parse UPID %.120q: node or type is missing or malformed", s)
	}

	return UPID{
		Node: parts[1], Ticks: ticks, Start: time.Unix(int64(start), 0),
		Type: parts[5], ID: parts[6], User: parts[7],
	}, nil
}

// isTaskSuccess reports whether an exit status means success: OK, or WARNINGS: n.
func isTaskSuccess(exit string) bool {
	return exit == "OK" || strings.HasPrefix(exit, "WARNINGS: ")
}

// isTaskOutcomeUnknown reports whether an exit status says nothing about the outcome, because the worker
// was killed or the node restarted.
func isTaskOutcomeUnknown(exit string) bool { return exit == exitUnknown }

// exitUnknown is the exit status that Proxmox returns for a task whose end was not recorded.
const exitUnknown = "unexpected status"
