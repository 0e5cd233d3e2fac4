// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"errors"
	"fmt"
	"net/netip"
)

// ReasonExhausted is the reason to give in conditions and events when an
// *ExhaustedError is met. It is the one of Cluster API's IPAM contract.
const ReasonExhausted = "PoolExhausted"

// ErrNoPool is wrapped when a network has no pool of the name.
var ErrNoPool = errors.New("the network has no such pool")

// ExhaustedError is returned when a pool has no free address of a family that it has.
// Nothing was taken then, of the other family either. It ends with a release, or with a
// larger pool.
type ExhaustedError struct {
	Network, Pool string
	Family        Family
	// Size is how many addresses of the family the pool gives in all.
	Size uint64
}

// Error is for conditions: it says what to do.
func (e *ExhaustedError) Error() string {
	return fmt.Sprintf("all %d %s addresses of pool %s on network %s are in use: add addresses to the pool, or delete machines",
		e.Size, e.Family, e.Pool, e.Network)
}

// LogMessage is what the log has to say for a machine's interface.
func (e *ExhaustedError) LogMessage(interfaceName string) string {
	return "No available IPs in pool for interface " + interfaceName
}

// OverlapError is returned for a pool that gives addresses that another pool of the
// network gives as well.
type OverlapError struct {
	Network, Pool string
	// Other is the pool that was there before.
	Other string
	// Range is the first run of addresses that both give.
	Range Range
}

// Error names both pools and what they share.
func (e *OverlapError) Error() string {
	return fmt.Sprintf(
		"pool %s overlaps pool %s on network %s at %s: give each pool addresses of its own, or exclude these in one of them",
		e.Pool, e.Other, e.Network, e.Range)
}

// Refusal is why an address that was asked for is not available.
type Refusal string

// The refusals. All but RefusedHeld and RefusedSecond last until the pool changes.
const (
	// RefusedOutside is an address that is in no entry of the pool.
	RefusedOutside Refusal = "Outside"
	// RefusedExcluded is an excluded address.
	RefusedExcluded Refusal = "Excluded"
	// RefusedGateway is a gateway, of this pool or of another one on the network.
	RefusedGateway Refusal = "Gateway"
	// RefusedReserved is a network, broadcast or subnet-router anycast address.
	RefusedReserved Refusal = "Reserved"
	// RefusedHeld is an address that another owner has.
	RefusedHeld Refusal = "Held"
	// RefusedSecond is a second address of a family for one owner.
	RefusedSecond Refusal = "Second"
)

// UnavailableError is returned when an address that was asked for is not available.
// Nothing was taken then.
type UnavailableError struct {
	Network, Pool string
	Address       netip.Addr
	Refusal       Refusal
	// Holder has the address, for RefusedHeld; for RefusedSecond it is the owner itself.
	Holder string
}

// Error says why, and what to do.
func (e *UnavailableError) Error() string {
	why := map[Refusal]string{
		RefusedOutside:  "the pool does not have it: ask for one of the pool's, or add it there",
		RefusedExcluded: "the pool excludes it: ask for another one",
		RefusedGateway:  "it is a gateway: ask for another one",
		RefusedReserved: "it is the network, broadcast or anycast address of its subnet: ask for another one",
		RefusedHeld:     e.Holder + " has it: ask for another one, or delete that machine",
		RefusedSecond:   e.Holder + " has or asks for another one of the family: a machine gets one of each",
	}[e.Refusal]

	return fmt.Sprintf("address %s of pool %s on network %s: %s", e.Address, e.Pool, e.Network, why)
}

// ConflictError is returned when two owners are on record with one address. The first
// one on record keeps it.
type ConflictError struct {
	Network string
	Address netip.Addr
	// Owner is the one that was refused, Holder the one that has the address.
	Owner, Holder string
}

// Error names both owners.
func (e *ConflictError) Error() string {
	return fmt.Sprintf("address %s on network %s is on record for %s and for %s: delete one of the machines",
		e.Address, e.Network, e.Holder, e.Owner)
}
