// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hyperfleet/hyperfleet/hypervisor"
)

const (
	// managedBy marks a record as this product's.
	managedBy = "hyperfleet"
	// maxDescription is the longest description that Proxmox takes, in characters
	// (option `description` of POST /nodes/{node}/qemu/{vmid}/clone).
	maxDescription = 8192
	// hashLength is how many hexadecimal digits of a digest stand in tags and names.
	hashLength = 10
)

// errNoRecord says that a description holds no ownership record.
var errNoRecord = errors.New("no ownership record")

// Record is the ownership of a machine as it stands in its description.
type Record struct {
	ManagedBy string `json:"managedBy"`
	// Cluster is the name of the HypervisorCluster.
	Cluster string `json:"cluster"`
	// VMID is the id that the record was written for. Proxmox copies a description to
	// whatever is cloned from a machine; the copy has another id and is nobody's.
	VMID         int          `json:"vmid"`
	MachineClaim MachineClaim `json:"machineClaim"`
	RunnerPool   string       `json:"runnerPool,omitempty"`
	// CreatedAt is when the clone was asked for.
	CreatedAt   time.Time `json:"createdAt"`
	OperatorUID string    `json:"operatorUID"`
}

// MachineClaim names the claim in a Record.
type MachineClaim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Owner is the record's claim.
func (r Record) Owner() hypervisor.Owner {
	return hypervisor.Owner{
		Namespace: r.MachineClaim.Namespace, Name: r.MachineClaim.Name,
		UID: r.MachineClaim.UID, Pool: r.RunnerPool,
	}
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
// left aside. errNoRecord means that there is none.
func ParseRecord(description string) (Record, error) {
	line, _, _ := strings.Cut(strings.TrimSpace(description), "\n")
	if !strings.HasPrefix(line, "{") {
		return Record{}, errNoRecord
	}

	var r Record
	if err := json.Unmarshal([]byte(line), &r); err != nil {
		return Record{}, fmt.Errorf("%w: %w", errNoRecord, err)
	}

	if r.ManagedBy != managedBy || r.MachineClaim.UID == "" || r.OperatorUID == "" {
		return Record{}, errNoRecord
	}

	return r, nil
}

// identity is the operator on one cluster: what a record must carry to be ours.
type identity struct {
	operatorUID, cluster string
}

// hash stands for the identity in tags and names of ISOs. The cluster is part of it, so
// that two HypervisorClusters on one Proxmox keep their ISOs apart.
func (i identity) hash() string {
	sum := sha256.Sum256([]byte(i.operatorUID + "\x00" + i.cluster))

	return hex.EncodeToString(sum[:])[:hashLength]
}

// record makes the record of a machine.
func (i identity) record(id int, owner hypervisor.Owner, now time.Time) Record {
	return Record{
		ManagedBy: managedBy, Cluster: i.cluster, VMID: id,
		MachineClaim: MachineClaim{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID},
		RunnerPool:   owner.Pool, CreatedAt: now.UTC().Truncate(time.Second), OperatorUID: i.operatorUID,
	}
}

// owns tells whether the record, found on machine id, is this operator's.
func (i identity) owns(r Record, id int) bool {
	return r.ManagedBy == managedBy && r.OperatorUID == i.operatorUID && r.Cluster == i.cluster && r.VMID == id
}

// isoPrefix begins the names of this operator's ISOs.
func (i identity) isoPrefix() string { return "hf-" + i.hash() + "-" }

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
