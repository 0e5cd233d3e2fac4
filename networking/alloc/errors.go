// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"errors"
	"fmt"
	"net/netip"
)

// ReasonExhausted is the reason of conditions and events for an *ExhaustedError. Cluster API's IPAM
// contract defines this reason.
const ReasonExhausted = "PoolExhausted"

// ErrNoPool is wrapped by the errors for a pool that the network does not have.
var ErrNoPool = errors.New("the network has no such pool")

// ExhaustedError is returned when a pool has no free address of one of its families. In this case no
// address was allocated, not even of the other family. The pool has free addresses again after a release or
// after addresses were added to the pool.
type ExhaustedError struct {
	Network, Pool string
	Family        Family
	// Size is the number of addresses of the family in the pool, used and free.
	Size uint64
}

// Error returns a message for conditions. The message says what to do.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("all %d %s addresses of pool %s on network %s are in use: add addresses to the pool, or delete machines",
		e.Size, e.Family, e.Pool, e.Network)
}

// LogMessage returns the log message for an interface of a machine.
func (e *ExhaustedError) LogMessage(interfaceName string) string {
	return "No available IPs in pool for interface " + interfaceName
}

// OverlapError is returned for a pool that shares addresses with another pool of the network.
type OverlapError struct {
	Network, Pool string
	// Other is the pool that the network already had.
	Other string
	// OtherNetwork is the key of the other pool's network, if the keys differ and both may be one network.
	// Otherwise it is empty.
	OtherNetwork string
	// Range is the first run of addresses that both pools have.
	Range Range
}

// Error returns a message with both pools and the shared range.
func (e *OverlapError) Error() string {
	if e.OtherNetwork != "" {
		return fmt.Sprintf("pool %s on network %s overlaps pool %s on network %s, which may be the same one, at %s: "+
			"use different addresses in each pool", e.Pool, e.Network, e.Other, e.OtherNetwork, e.Range)
	}

	return fmt.Sprintf(
		"pool %s overlaps pool %s on network %s at %s: use different addresses in each pool, or exclude the shared ones from one pool",
		e.Pool, e.Other, e.Network, e.Range)
}

// Refusal is the reason why a requested address is not available.
type Refusal string

// The refusals. All except RefusedInUse and RefusedSecondAddress last until the pool changes.
const (
	// RefusedNotInPool means that no entry of the pool contains the address.
	RefusedNotInPool Refusal = "Outside"
	// RefusedExcluded means that the pool excludes the address.
	RefusedExcluded Refusal = "Excluded"
	// RefusedGateway means that the address is a gateway of this or of another pool on the network.
	RefusedGateway Refusal = "Gateway"
	// RefusedReserved means that the address is a network, broadcast or subnet-router anycast address.
	RefusedReserved Refusal = "Reserved"
	// RefusedInUse means that another owner has the address.
	RefusedInUse Refusal = "Held"
	// RefusedSecondAddress means that the owner would get a second address of the same family.
	RefusedSecondAddress Refusal = "Second"
)

// UnavailableError is returned when a requested address is not available. In this case no address was
// allocated.
type UnavailableError struct {
	Network, Pool string
	Address       netip.Addr
	Refusal       Refusal
	// Holder is the owner of the address for RefusedInUse, and the requesting owner for RefusedSecondAddress.
	Holder string
}

// Error returns a message with the reason and with what to do.
func (e *UnavailableError) Error() string {
	explanation := map[Refusal]string{
		RefusedNotInPool: "the pool does not have it: request an address of the pool, or add this address to the pool",
		RefusedExcluded:  "the pool excludes it: request another address",
		RefusedGateway:   "it is a gateway: request another address",
		RefusedReserved:  "it is the network, broadcast or anycast address of its subnet: request another address",
		RefusedInUse:     e.Holder + " has it: request another address, or delete that machine",
		RefusedSecondAddress: e.Holder + " has or requests another address of this family: " +
			"a machine gets only one address of each family",
	}[e.Refusal]

	return fmt.Sprintf("address %s of pool %s on network %s: %s", e.Address, e.Pool, e.Network, explanation)
}

// ConflictError is returned when the records of two owners have the same address. The owner that was
// restored first keeps the address.
type ConflictError struct {
	Network string
	Address netip.Addr
	// Owner is the owner that was refused, and Holder is the owner that keeps the address.
	Owner, Holder string
}

// Error returns a message with both owners.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("address %s on network %s is recorded for %s and for %s: delete one of the machines",
		e.Address, e.Network, e.Holder, e.Owner)
}
