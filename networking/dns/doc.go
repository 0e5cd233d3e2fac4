// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dns manages the DNS records of machines. These are A or AAAA records and, if the reverse zone is
// configured, PTR records.
//
//	MachineClaim Ready    ─► DNSRegistration ─► ownership record ─► record
//	MachineClaim deleted  ─► DNSRegistration deleted ─► record deleted ─► ownership record deleted ─► finalizer removed
//
// A DNSRegistration lists the records of one machine in its status. The package creates it before the first
// record, and it exists until the last record is deleted. The deletion of a claim therefore never waits for
// DNS.
//
// KubevirtMachines are registered in the same way, with the DNS settings of their node pool. Their deletion
// waits for DNS (package machine), because another machine can get their addresses after it.
//
// Each record has an ownership record. This is a TXT record at _hyperfleet.NAME with the operator, the
// machine and the record. The package never changes or deletes a record without our ownership record, and
// never adds a record to a name that has a record of another writer. It creates the ownership record before the record
// and deletes it after the record, so a crash at any point leaves no record without an ownership record.
// The Sweeper deletes records whose DNSRegistration no longer exists.
//
// All calls to DNS services go through libdns (github.com/libdns) with the providers route53, cloudflare
// and rfc2136. The package only adds records and deletes records by their exact value. It never replaces
// all records of a name, because this can overwrite a concurrent change of another writer.
package dns
