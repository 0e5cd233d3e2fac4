// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// UPID is the parsed name of a task:
// UPID:node:pid:pstart:starttime:type:id:user:, with the three numbers in hexadecimal
// (PVE::Tools::upid_decode).
type UPID struct {
	Node  string
	Start time.Time
	// Ticks is the start of the task's process in clock ticks since the node's boot.
	Ticks uint64
	// Type such as qmclone, and the ID it is about: for qmclone the template's.
	Type, ID string
	// User with realm, and token where there is one.
	User string
}

const upidFields = 9

// ParseUPID reads a task's name.
func ParseUPID(s string) (UPID, error) {
	parts := strings.Split(s, ":")
	if len(parts) != upidFields || parts[0] != "UPID" || parts[upidFields-1] != "" {
		return UPID{}, fmt.Errorf("parse task name %.120q: it is not UPID:node:pid:pstart:starttime:type:id:user: in nine parts", s)
	}

	if _, err := strconv.ParseUint(parts[2], 16, 64); err != nil {
		return UPID{}, fmt.Errorf("parse task name %.120q: %q is not hexadecimal", s, parts[2])
	}

	ticks, err := strconv.ParseUint(parts[3], 16, 64)
	if err != nil {
		return UPID{}, fmt.Errorf("parse task name %.120q: %q is not hexadecimal", s, parts[3])
	}

	start, err := strconv.ParseUint(parts[4], 16, 40)
	if err != nil {
		return UPID{}, fmt.Errorf("parse task name %.120q: start %q is not hexadecimal", s, parts[4])
	}

	if parts[1] == "" || strings.ContainsAny(parts[1], "/?#%") || parts[5] == "" {
		return UPID{}, fmt.Errorf("parse task name %.120q: node or type is missing or malformed", s)
	}

	return UPID{
		Node: parts[1], Ticks: ticks, Start: time.Unix(int64(start), 0),
		Type: parts[5], ID: parts[6], User: parts[7],
	}, nil
}

// taskSucceeded tells whether an exit status is a success: OK, or WARNINGS: n.
func taskSucceeded(exit string) bool {
	return exit == "OK" || strings.HasPrefix(exit, "WARNINGS: ")
}

// taskLost tells whether an exit status says nothing about the outcome: the worker was
// killed or its node restarted.
func taskLost(exit string) bool { return exit == exitLost }

// exitLost is what Proxmox says of a task whose end was not recorded.
const exitLost = "unexpected status"
