// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// ManagedBy marks a record, and what bears it, as this product's.
const ManagedBy = "hyperfleet"

// hashLength is how many hexadecimal digits of a digest stand in tags, labels and names.
const hashLength = 10

// ErrNoRecord says that there is no ownership record.
var ErrNoRecord = errors.New("no ownership record")

// Record is the ownership of a machine and of its cloud-init ISO, as JSON wherever the hypervisor
// has room for a text: the document's six keys. A provider adds the id that it was written
// for, under its own name.
type Record struct {
	// ManagedBy is ManagedBy.
	ManagedBy string `json:"managedBy"`
	// Cluster is the name of the HypervisorCluster.
	Cluster      string       `json:"cluster"`
	MachineClaim MachineClaim `json:"machineClaim"`
	RunnerPool   string       `json:"runnerPool,omitempty"`
	// CreatedAt is when the machine was asked for.
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
func (r Record) Owner() Owner {
	return Owner{
		Namespace: r.MachineClaim.Namespace, Name: r.MachineClaim.Name,
		UID: r.MachineClaim.UID, Pool: r.RunnerPool,
	}
}

// OfProduct says whether this product wrote the record, whichever operator it was.
func (r Record) OfProduct() bool {
	return r.ManagedBy == ManagedBy && r.MachineClaim.UID != "" && r.OperatorUID != ""
}

// ReadRecord reads JSON into a provider's record. An error is ErrNoRecord.
func ReadRecord(text string, into interface{ OfProduct() bool }) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%w: %w", ErrNoRecord, err)
	}

	if !into.OfProduct() {
		return ErrNoRecord
	}

	return nil
}

// Identity is the operator on one cluster: what a record must carry to be its own.
type Identity struct {
	OperatorUID, Cluster string
}

// Hash stands for the identity in tags, labels and names. The cluster is part of it, so
// that two HypervisorClusters on one hypervisor keep what is theirs apart.
func (i Identity) Hash() string {
	sum := sha256.Sum256([]byte(i.OperatorUID + "\x00" + i.Cluster))

	return hex.EncodeToString(sum[:])[:hashLength]
}

// Record makes the record of an owner's machine.
func (i Identity) Record(owner Owner, now time.Time) Record {
	return Record{
		ManagedBy: ManagedBy, Cluster: i.Cluster,
		MachineClaim: MachineClaim{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID},
		RunnerPool:   owner.Pool, CreatedAt: now.UTC().Truncate(time.Second), OperatorUID: i.OperatorUID,
	}
}

// Wrote tells whether a record is this operator's.
func (i Identity) Wrote(r Record) bool {
	return r.ManagedBy == ManagedBy && r.OperatorUID == i.OperatorUID && r.Cluster == i.Cluster
}
