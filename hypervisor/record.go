// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package hypervisor

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ManagedBy identifies this product in ownership records and in the labels and tags of the
// objects that carry them.
const ManagedBy = "hyperfleet"

// maxMachineName is the maximum length of a machine's name, which is a host name and may be a label value.
const maxMachineName = 63

// hashLength is the number of hexadecimal digits of a digest in tags, labels and names.
const hashLength = 10

// ErrNoRecord means that a text holds no ownership record of this product.
var ErrNoRecord = errors.New("no ownership record")

// Record is the ownership record of a machine and of its cloud-init ISO. Its JSON is stored in a
// text field of the hypervisor. A provider adds the id that the record was written for, under a
// key of its own.
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
	// Addresses are the addresses that the machine has from an address pool, separated by commas, and
	// AddressNetwork is the network on which no other machine may have them.
	Addresses      string `json:"addresses,omitempty"`
	AddressNetwork string `json:"addressNetwork,omitempty"`
	// Devices are the addresses of the node's devices that the machine has while it runs, separated by commas, if
	// the provider chooses them.
	Devices string `json:"devices,omitempty"`
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

// IsOfProduct reports whether an operator of this product wrote the record. It can be another
// operator than this one.
func (r Record) IsOfProduct() bool {
	return r.ManagedBy == ManagedBy && r.MachineClaim.UID != "" && r.OperatorUID != ""
}

// DecodeRecord decodes JSON into a provider's record. Each error wraps ErrNoRecord, also if the
// text is not JSON or another product wrote the record.
func DecodeRecord(text string, into interface{ IsOfProduct() bool }) error {
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%w: %w", ErrNoRecord, err)
	}

	if !into.IsOfProduct() {
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
func (i Identity) NewRecord(owner Owner, network NetworkOptions, now time.Time) Record {
	record := Record{
		ManagedBy: ManagedBy, Cluster: i.Cluster,
		MachineClaim: MachineClaim{Namespace: owner.Namespace, Name: owner.Name, UID: owner.UID},
		RunnerPool:   owner.Pool, CreatedAt: now.UTC().Truncate(time.Second), OperatorUID: i.OperatorUID,
	}

	if network.AddressNetwork != "" {
		record.Addresses, record.AddressNetwork = strings.Join(network.Addresses, ","), network.AddressNetwork
	}

	return record
}

// ListAddresses returns the addresses in the record.
func (r Record) ListAddresses() []string { return splitList(r.Addresses) }

// ListDevices returns the addresses of the devices in the record.
func (r Record) ListDevices() []string { return splitList(r.Devices) }

func splitList(text string) []string {
	return strings.FieldsFunc(text, func(c rune) bool { return c == ',' })
}

// CheckAddresses returns an error of kind NoCapacity if the machine of the record has an address that is
// allocated to the machine of spec. This happens if objects were restored from a backup: the record may be
// older than the allocation. machine describes the machine of the record to people.
func (r Record) CheckAddresses(spec MachineSpec, machine string) error {
	if r.MachineClaim.UID == spec.Owner.UID || r.AddressNetwork == "" ||
		!MayBeSameNetwork(r.AddressNetwork, spec.Network.AddressNetwork) {
		return nil
	}

	for _, address := range spec.Network.Addresses {
		wanted := parseAddress(address)

		if slices.ContainsFunc(r.ListAddresses(), func(used string) bool { return parseAddress(used) == wanted }) {
			return Errorf(NoCapacity, ReasonAddressInUse, "%s of MachineClaim %s/%s (uid %s) has address %s on network %s: "+
				"the operator creates this machine when the other machine is deleted",
				machine, r.MachineClaim.Namespace, r.MachineClaim.Name, r.MachineClaim.UID, address, r.AddressNetwork)
		}
	}

	return nil
}

// parseAddress returns the address without its prefix length, in one form for all spellings of it.
func parseAddress(text string) string {
	text, _, _ = strings.Cut(text, "/")

	if address, err := netip.ParseAddr(text); err == nil {
		return address.String()
	}

	return text
}

// HasWritten reports whether this operator wrote the record for this cluster.
func (i Identity) HasWritten(r Record) bool {
	return r.ManagedBy == ManagedBy && r.OperatorUID == i.OperatorUID && r.Cluster == i.Cluster
}

// MachineName returns a name for a machine: the claim's name and the ID, with at most 63 characters. If the name is
// too long, MachineName removes the start of the claim's name, because its random part is at its end. The name has no
// dots, because a host name may not have them.
func MachineName(owner Owner, id int) string {
	suffix := "-" + strconv.Itoa(id)

	name := owner.Name
	if excess := len(name) + len(suffix) - maxMachineName; excess > 0 {
		name = strings.TrimLeft(name[excess:], "-.")
	}

	return strings.ReplaceAll(name, ".", "-") + suffix
}
