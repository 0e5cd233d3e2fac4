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

// ManagedBy identifies this product in ownership records and in the labels and tags of the
// objects that carry them.
const ManagedBy = "hyperfleet"

// hashLength is the number of hexadecimal digits of a digest in tags, labels and names.
const hashLength = 10

// ErrNoRecord means that a text holds no ownership record of this product.
var ErrNoRecord = errors.New("no ownership record")

// Record is the ownership record of a machine and of its cloud-init ISO. Its JSON, with the six
// keys of the operator's document, is stored in a text field of the hypervisor. A provider adds
// the id that the record was written for, under a key of its own.
type Record struct {
	// ManagedBy holds the constant ManagedBy.
	ManagedBy string `json:"managedBy"`
	// Cluster is the name of the HypervisorCluster.
	Cluster      string       `json:"cluster"`
	MachineClaim MachineClaim `json:"machineClaim"`
	RunnerPool   string       `json:"runnerPool,omitempty"`
	// CreatedAt is the time at which the machine was requested.
	CreatedAt   time.Time `json:"createdAt"`
	OperatorUID string    `json:"operatorUID"`
}

// MachineClaim identifies the claim in a Record.
type MachineClaim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

// Owner returns the claim and the pool that the record names.
func (r Record) Owner() Owner {
	return Owner{
		Namespace: r.MachineClaim.Namespace, Name: r.MachineClaim.Name,
		UID: r.MachineClaim.UID, Pool: r.RunnerPool,
	}
}

// OfProduct reports whether an operator of this product wrote the record. It can be another
// operator than this one.
func (r Record) OfProduct() bool {
	return r.ManagedBy == ManagedBy && r.MachineClaim.UID != "" && r.OperatorUID != ""
}

// DecodeRecord decodes JSON into a provider's record. Each error wraps ErrNoRecord, also if the
// text is not JSON or another product wrote the record.
func DecodeRecord(text string, into interface{ OfProduct() bool }) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%w: %w", ErrNoRecord, err)
	}

	if !into.OfProduct() {
		return ErrNoRecord
	}

	return nil
}

// Identity identifies an operator on one cluster. A record belongs to the operator if it carries
// both fields.
type Identity struct {
	OperatorUID, Cluster string
}

// Hash returns a short digest of the identity for tags, labels and names. The digest includes
// the cluster, so two HypervisorClusters on one hypervisor do not share machines.
func (i Identity) Hash() string {
	sum := sha256.Sum256([]byte(i.OperatorUID + "\x00" + i.Cluster))

	return hex.EncodeToString(sum[:])[:hashLength]
}

// NewRecord returns the record for a machine of the owner. It truncates the time to seconds.
func (i Identity) NewRecord(owner Owner, now time.Time) Record {
	return Record{
		ManagedBy: ManagedBy, Cluster: i.Cluster,
		MachineClaim: MachineClaim{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID},
		RunnerPool:   owner.Pool, CreatedAt: now.UTC().Truncate(time.Second), OperatorUID: i.OperatorUID,
	}
}

// HasWritten reports whether this operator wrote the record for this cluster.
func (i Identity) HasWritten(r Record) bool {
	return r.ManagedBy == ManagedBy && r.OperatorUID == i.OperatorUID && r.Cluster == i.Cluster
}
