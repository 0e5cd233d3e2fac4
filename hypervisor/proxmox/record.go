// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// maxDescription is the longest description that Proxmox accepts, in characters (option `description` of
// POST /nodes/{node}/qemu/{vmid}/clone).
const maxDescription = 8192

// Record is the ownership record in the description of a VM.
type Record struct {
	hypervisor.Record

	// VMID is the ID for which the record was written. Proxmox copies the description of a VM to its
	// clones. A clone has another ID, so the copied record does not count as ownership.
	VMID int `json:"vmid"`
}

// Encode returns the record as a description: one line of JSON.
func (r Record) Encode() (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode ownership record of machine %d: %w", r.VMID, err)
	}

	if len(raw) > maxDescription {
		return "", fmt.Errorf("encode ownership record of machine %d: it has %d characters, and Proxmox accepts at most %d",
			r.VMID, len(raw), maxDescription)
	}

	return string(raw), nil
}

// ParseRecord parses a record from a description. It ignores the text after the first line. If the
// description has no record, the error is hypervisor.ErrNoRecord.
func ParseRecord(description string) (Record, error) {
	line, _, _ := strings.Cut(strings.TrimSpace(description), "\n")
	if !strings.HasPrefix(line, "{") {
		return Record{}, hypervisor.ErrNoRecord
	}

	var r Record
	if err := hypervisor.DecodeRecord(line, &r); err != nil {
		return Record{}, err
	}

	return r, nil
}

// identity is the identity of this operator on one cluster. The records of this operator carry the
// identity.
type identity struct{ hypervisor.Identity }

func (i identity) newRecord(id int, spec hypervisor.MachineSpec, now time.Time) Record {
	return Record{Record: i.NewRecord(spec.Owner, spec.Network, now), VMID: id}
}

// owns reports whether the record of VM id belongs to this operator.
func (i identity) owns(r Record, id int) bool { return i.HasWritten(r.Record) && r.VMID == id }

// isoPrefix returns the prefix of the names of this operator's ISOs.
func (i identity) isoPrefix() string { return "hf-" + i.Hash() + "-" }

func (i identity) isoName(claimUID string) string {
	return i.isoPrefix() + sanitizeName(claimUID) + ".iso"
}

// parseISOOwner returns the claim UID in the name of an ISO, and false if the ISO is not this operator's.
func (i identity) parseISOOwner(volid string) (string, bool) {
	_, name, _ := strings.Cut(volid, ":iso/")

	uid, ok := strings.CutPrefix(name, i.isoPrefix())
	if !ok {
		return "", false
	}

	return strings.CutSuffix(uid, ".iso")
}

// snippetName returns the file name of a claim's user data or meta data on a snippets storage.
func (i identity) snippetName(claimUID, part string) string {
	return i.isoPrefix() + sanitizeName(claimUID) + "-" + part + ".yaml"
}

// sanitizeName replaces the characters that Proxmox does not allow in a file name. Claim UIDs are UUIDs and
// do not change.
func sanitizeName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		default:
			return '_'
		}
	}, s)
}
