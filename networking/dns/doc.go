// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dns keeps the DNS records of machines: A or AAAA and, where the reverse zone is
// ours to write to, PTR.
//
//	MachineClaim Ready ─► DNSRegistration ─► mark ─► record          registered
//	MachineClaim gone  ─► DNSRegistration deleted ─► record ─► mark ─► finalizer off
//
// A DNSRegistration is the memory of one machine's records. It is made before the first
// record and stays until the last is gone, so a claim's own deletion never waits for DNS.
//
// KubevirtMachines are registered in the same way, with the settings that their node pool
// names. Their deletion waits (package machine): their addresses are given to others after
// their records are gone.
//
// Beside each record stands its mark, a TXT record at _hyperfleet.NAME that names the
// operator, the machine and the record itself. A record without our mark is never changed
// or removed, and nothing is added to a name that has one. The mark is written before its
// record and removed after it, so a crash at any point leaves nothing that is not marked;
// what is marked and belongs to no registration any more is swept.
//
// Calls to DNS services go through libdns (github.com/libdns), and through it alone:
// route53, cloudflare and rfc2136. Records are only ever added and removed by their exact
// value, never set, so that a change by somebody else at the same moment is not lost.
package dns
