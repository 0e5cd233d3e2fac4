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

// maxDescription is the longest description that Proxmox takes, in characters
// (option `description` of POST /nodes/{node}/qemu/{vmid}/clone).
const maxDescription = 8192

// Record is the ownership of a machine as it stands in its description.
type Record struct {
	hypervisor.Record

	// VMID is the id that the record was written for. Proxmox copies a description to
	// whatever is cloned from a machine; the copy has another id and is nobody's.
	VMID int `json:"vmid"`
}

// Encode gives the record as a description: one line of JSON.
func (r Record) Encode() (string, error) {
	raw, err := json.Marshal(r)
	if err != nil {
		return "", fmt.Errorf("encode ownership of machine %d: %w", r.VMID, err)
	}

	if len(raw) > maxDescription {
		return "", fmt.Errorf("encode ownership of machine %d: %d characters, Proxmox takes %d",
			r.VMID, len(raw), maxDescription)
	}

	return string(raw), nil
}

// ParseRecord reads a record from a description. What people wrote after its line is
// left aside. hypervisor.ErrNoRecord means that there is none.
func ParseRecord(description string) (Record, error) {
	line, _, _ := strings.Cut(strings.TrimSpace(description), "\n")
	if !strings.HasPrefix(line, "{") {
		return Record{}, hypervisor.ErrNoRecord
	}

	var r Record
	if err := hypervisor.ReadRecord(line, &r); err != nil {
		return Record{}, err
	}

	return r, nil
}

// identity is the operator on one cluster: what a record must carry to be ours.
type identity struct{ hypervisor.Identity }

// record makes the record of a machine.
func (i identity) record(id int, owner hypervisor.Owner, now time.Time) Record {
	return Record{Record: i.Record(owner, now), VMID: id}
}

// owns tells whether the record, found on machine id, is this operator's.
func (i identity) owns(r Record, id int) bool { return i.Wrote(r.Record) && r.VMID == id }

// isoPrefix begins the names of this operator's ISOs.
func (i identity) isoPrefix() string { return "hf-" + i.Hash() + "-" }

// isoName is the name of a claim's ISO.
func (i identity) isoName(claimUID string) string { return i.isoPrefix() + safeName(claimUID) + ".iso" }

// isoOwner gives the claim uid that an ISO's name carries, if it is this operator's.
func (i identity) isoOwner(volid string) (string, bool) {
	_, name, _ := strings.Cut(volid, ":iso/")

	uid, ok := strings.CutPrefix(name, i.isoPrefix())
	if !ok {
		return "", false
	}

	return strings.CutSuffix(uid, ".iso")
}

// snippetName is the name of a claim's user data on a snippets storage.
func (i identity) snippetName(claimUID, part string) string {
	return i.isoPrefix() + safeName(claimUID) + "-" + part + ".yaml"
}

// safeName keeps what Proxmox allows in a file's name. Claim uids are UUIDs and stay
// what they are.
func safeName(s string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		default:
			return '_'
		}
	}, s)
}
