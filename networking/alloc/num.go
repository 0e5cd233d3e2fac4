// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package alloc

import (
	"encoding/binary"
	"math"
	"math/bits"
	"net/netip"
)

// u128 is an unsigned integer of 128 bits. It holds an address, or the number of an address in a layout.
type u128 struct{ hi, lo uint64 }

func (a u128) less(b u128) bool {
	return a.hi < b.hi || (a.hi == b.hi && a.lo < b.lo)
}

func (a u128) cmp(b u128) int {
	switch {
	case a.less(b):
		return -1
	case b.less(a):
		return 1
	default:
		return 0
	}
}

// plus returns a + b. It wraps around, as unsigned integers do.
func (a u128) plus(b u128) u128 {
	lo, carry := bits.Add64(a.lo, b.lo, 0)
	hi, _ := bits.Add64(a.hi, b.hi, carry)

	return u128{hi: hi, lo: lo}
}

// minus returns a - b. It wraps around, as unsigned integers do.
func (a u128) minus(b u128) u128 {
	lo, borrow := bits.Sub64(a.lo, b.lo, 0)
	hi, _ := bits.Sub64(a.hi, b.hi, borrow)

	return u128{hi: hi, lo: lo}
}

func (a u128) next() u128     { return a.plus(u128{lo: 1}) }
func (a u128) previous() u128 { return a.minus(u128{lo: 1}) }

// bitLen returns the number of bits that a needs. It is 0 for 0.
func (a u128) bitLen() int {
	if a.hi != 0 {
		return 64 + bits.Len64(a.hi)
	}

	return bits.Len64(a.lo)
}

// saturated returns a as 64 bits, or the largest 64-bit number if a does not fit.
func (a u128) saturated() uint64 {
	if a.hi != 0 {
		return math.MaxUint64
	}

	return a.lo
}

// Family is the IP version of an address.
type Family int

// The families, in the order in which addresses are listed.
const (
	IPv4 Family = iota
	IPv6
)

// familyCount is the number of families.
const familyCount = 2

// String returns the name of the family, such as IPv4.
func (f Family) String() string {
	if f == IPv4 {
		return "IPv4"
	}

	return "IPv6"
}

// bits returns the length of an address in bits.
func (f Family) bits() int {
	if f == IPv4 {
		return 32
	}

	return 128
}

// FamilyOf returns the family of an address. An IPv4 address written as IPv6 is IPv4.
func FamilyOf(addr netip.Addr) Family {
	if addr.Unmap().Is4() {
		return IPv4
	}

	return IPv6
}

func toUint128(addr netip.Addr) u128 {
	if addr.Is4() {
		b := addr.As4()

		return u128{lo: uint64(binary.BigEndian.Uint32(b[:]))}
	}

	b := addr.As16()

	return u128{hi: binary.BigEndian.Uint64(b[:8]), lo: binary.BigEndian.Uint64(b[8:])}
}

func (f Family) toAddr(n u128) netip.Addr {
	var b [16]byte

	binary.BigEndian.PutUint64(b[:8], n.hi)
	binary.BigEndian.PutUint64(b[8:], n.lo)

	if f == IPv4 {
		return netip.AddrFrom4([4]byte(b[12:]))
	}

	return netip.AddrFrom16(b)
}
