// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// namedFaults returns the faults that have a name on the command line.
func namedFaults() map[string]Fault {
	const (
		clone  = "/nodes/*/qemu/*/clone"
		config = "/nodes/*/qemu/*/config"
		status = "/nodes/*/qemu/*/status/*"
	)
	return map[string]Fault{
		"clone-lock":    {Kind: FaultTaskLock, Path: clone},
		"clone-sync":    {Kind: FaultLockTimeout, Path: clone},
		"clone-cut":     {Kind: FaultCutConnection, Path: clone},
		"clone-lost":    {Kind: FaultTaskLost, Path: clone},
		"clone-killed":  {Kind: FaultTaskKilled, Path: clone},
		"half-clone":    {Kind: FaultHalfClone},
		"config-lock":   {Kind: FaultLockTimeout, Path: config},
		"start-lock":    {Kind: FaultTaskLock, Path: "/nodes/*/qemu/*/status/start"},
		"destroy-lock":  {Kind: FaultTaskLock, Method: "DELETE", Path: "/nodes/*/qemu/*"},
		"task-lost":     {Kind: FaultTaskLost},
		"warnings":      {Kind: FaultWarnings},
		"storage-full":  {Kind: FaultStorageFull},
		"stale":         {Kind: FaultStale},
		"vm-crash":      {Kind: FaultVMCrash},
		"unauthorized":  {Kind: FaultUnauthorized},
		"node-down":     {Kind: FaultNodeDown, Path: status},
		"proxy-timeout": {Kind: FaultProxyTimeout, Path: status},
		"error-500":     {Kind: FaultError, Status: 500},
		"error-503":     {Kind: FaultError, Status: 503, Reason: "Service Unavailable"},
		"slow":          {Kind: FaultSlow},
	}
}

// FaultNames returns the names that [ParseFaults] accepts, sorted.
func FaultNames() []string { return slices.Sorted(maps.Keys(namedFaults())) }

// ParseFaults parses a list such as "clone-lock=0.2,vm-crash=0.1@5s,slow=1x3@2s". An entry has the
// name of a fault, its probability, the maximum number of uses after x, and the delay after @.
func ParseFaults(spec string) ([]Fault, error) {
	var out []Fault
	for item := range strings.SplitSeq(spec, ",") {
		item = strings.TrimSpace(item)
		if item == "" {
			continue
		}
		f, err := parseFault(item)
		if err != nil {
			return nil, fmt.Errorf("fault %q: %w", item, err)
		}
		out = append(out, f)
	}
	return out, nil
}

func parseFault(item string) (Fault, error) {
	name, value, _ := strings.Cut(item, "=")
	f, ok := namedFaults()[name]
	if !ok {
		return f, fmt.Errorf("unknown name (use one of %s)", strings.Join(FaultNames(), ", "))
	}
	value, delay, hasDelay := strings.Cut(value, "@")
	value, count, hasCount := strings.Cut(value, "x")
	var err error
	if hasDelay {
		if f.Delay, err = time.ParseDuration(delay); err != nil {
			return f, fmt.Errorf("parse delay: %w", err)
		}
	}
	if hasCount {
		if f.Count, err = strconv.Atoi(count); err != nil {
			return f, fmt.Errorf("parse count: %w", err)
		}
	}
	if value != "" {
		if f.Probability, err = strconv.ParseFloat(value, 64); err != nil {
			return f, fmt.Errorf("parse probability: %w", err)
		}
		if f.Probability == 0 {
			return f, errors.New("a fault with probability 0 never applies: omit the fault")
		}
	}
	return f, f.Validate()
}

// faultJSON is Fault with the delay as text.
type faultJSON struct {
	Kind        FaultKind `json:"kind"`
	Method      string    `json:"method,omitempty"`
	Path        string    `json:"path,omitempty"`
	Node        string    `json:"node,omitempty"`
	VMID        int       `json:"vmid,omitempty"`
	Probability float64   `json:"probability,omitempty"`
	Count       int       `json:"count,omitempty"`
	Delay       string    `json:"delay,omitempty"`
	Status      int       `json:"status,omitempty"`
	Reason      string    `json:"reason,omitempty"`
}

// MarshalJSON encodes a fault with its delay in Go's format for durations.
func (f Fault) MarshalJSON() ([]byte, error) {
	return json.Marshal(faultJSON{
		f.Kind, f.Method, f.Path, f.Node, f.VMID, f.Probability, f.Count, f.Delay.String(), f.Status, f.Reason,
	})
}

// UnmarshalJSON decodes a fault that MarshalJSON has encoded.
func (f *Fault) UnmarshalJSON(data []byte) error {
	var j faultJSON
	if err := json.Unmarshal(data, &j); err != nil {
		return fmt.Errorf("decode fault: %w", err)
	}
	*f = Fault{
		Kind: j.Kind, Method: j.Method, Path: j.Path, Node: j.Node, VMID: j.VMID, Probability: j.Probability,
		Count: j.Count, Status: j.Status, Reason: j.Reason,
	}
	if j.Delay == "" {
		return nil
	}
	d, err := time.ParseDuration(j.Delay)
	if err != nil {
		return fmt.Errorf("decode fault: parse delay: %w", err)
	}
	f.Delay = d
	return nil
}
