// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/libdns/libdns"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
)

// conflict is a record that the operator cannot write because its name belongs to another owner.
type conflict struct {
	record v1alpha1.DNSRecord
	// existing is the existing record, or the machine that has the name.
	existing string
	// isHeldByMachine is true if the name belongs to another machine of this operator, which may be deleted
	// soon.
	isHeldByMachine bool
}

// String returns a message with the record and its owner.
func (c conflict) String() string {
	if c.isHeldByMachine {
		return fmt.Sprintf("%s %s belongs to %s", c.record.Type, c.record.Name, c.existing)
	}

	return fmt.Sprintf("%s has %s, which the operator did not create", c.record.Name, c.existing)
}

// changes are the changes to make in one zone, in the order of the fields.
type changes struct {
	addOwnership, addRecords       []libdns.Record
	deleteRecords, deleteOwnership []libdns.Record
	conflicts                      []conflict
}

func (c changes) isEmpty() bool {
	return len(c.addOwnership)+len(c.addRecords)+len(c.deleteRecords)+len(c.deleteOwnership) == 0
}

// listedOwnership is an ownership record as it was listed, with the name of the record that it belongs to.
type listedOwnership struct {
	ownershipRecord

	name  string
	entry entry
}

// ownershipRecords returns all ownership records in the zone, sorted by name and text.
func (l *Listing) ownershipRecords() []listedOwnership {
	var found []listedOwnership

	for name, entries := range l.names {
		owned, ok := strings.CutPrefix(name, ownershipPrefix)
		if !ok {
			continue
		}

		for _, e := range entries {
			if m, ok := parseOwnership(e.value); ok && e.kind == typeTXT {
				found = append(found, listedOwnership{ownershipRecord: m, name: owned, entry: e})
			}
		}
	}

	slices.SortFunc(found, func(a, b listedOwnership) int {
		return strings.Compare(a.name+" "+a.entry.value, b.name+" "+b.entry.value)
	})

	return found
}

// ownershipRecordsFor returns the ownership records for the records of one name.
func (l *Listing) ownershipRecordsFor(name string) []ownershipRecord {
	var found []ownershipRecord

	for _, e := range l.names[ownershipName(name)] {
		if m, ok := parseOwnership(e.value); ok && e.kind == typeTXT {
			found = append(found, m)
		}
	}

	return found
}

func (m ownershipRecord) belongsTo(owner Owner) bool {
	return m.operator == encodeID(owner.Operator) && m.uid == encodeID(owner.UID)
}

// planChanges compares a zone with the records that the owner's machine must have there. It plans to add
// missing records, and to delete the owner's other records. It does not touch records without an ownership
// record of the owner.
func planChanges(listing *Listing, owner Owner, records []v1alpha1.DNSRecord, ttl time.Duration) changes {
	var out changes

	desiredIDs := map[string]bool{}

	for _, record := range records {
		desiredIDs[record.Name+" "+recordID(record.Type, record.Value)] = true

		if found, ok := findConflict(listing, owner, record); ok {
			out.conflicts = append(out.conflicts, found)

			continue
		}

		planAdd(&out, listing, owner, record, ttl)
	}

	for _, m := range listing.ownershipRecords() {
		if m.belongsTo(owner) && !desiredIDs[m.name+" "+m.record] {
			planDelete(&out, listing, m)
		}
	}

	return out
}

// findConflict returns the conflict that keeps the operator from writing a record, and false if there is
// none. A conflict is a record that the operator has not created, or an ownership record of another
// machine.
func findConflict(listing *Listing, owner Owner, record v1alpha1.DNSRecord) (conflict, bool) {
	ownerships := listing.ownershipRecordsFor(record.Name)

	for _, e := range listing.names[record.Name] {
		if !canClaimName(e.kind) {
			continue
		}

		belongsToOperator := slices.ContainsFunc(ownerships, func(m ownershipRecord) bool {
			return m.operator == encodeID(owner.Operator) && m.record == recordID(e.kind, e.value)
		})

		if !belongsToOperator {
			return conflict{record: record, existing: e.kind + " " + e.value}, true
		}
	}

	for _, m := range ownerships {
		if m.operator == encodeID(owner.Operator) && m.uid != encodeID(owner.UID) {
			return conflict{record: record, existing: m.machine, isHeldByMachine: true}, true
		}
	}

	return conflict{}, false
}

// planAdd plans to add the record and its ownership record, if they are missing.
func planAdd(out *changes, listing *Listing, owner Owner, record v1alpha1.DNSRecord, ttl time.Duration) {
	hasOwnership := slices.ContainsFunc(listing.ownershipRecordsFor(record.Name), func(m ownershipRecord) bool {
		return m.belongsTo(owner) && m.record == recordID(record.Type, record.Value)
	})
	hasRecord := slices.ContainsFunc(listing.names[record.Name], func(e entry) bool {
		return e.kind == record.Type && e.value == normalizeValue(record.Type, record.Value)
	})

	if !hasOwnership {
		out.addOwnership = append(out.addOwnership, libdns.TXT{
			Name: libdns.RelativeName(ownershipName(record.Name)+".", listing.zone+"."), TTL: ttl, Text: ownershipText(owner, record),
		})
	}

	if hasRecord {
		return
	}

	value := record.Value
	if record.Type == typePTR {
		value += "."
	}

	out.addRecords = append(out.addRecords, libdns.RR{
		Name: libdns.RelativeName(record.Name+".", listing.zone+"."), TTL: ttl, Type: record.Type, Data: value,
	})
}

// planDelete plans to delete an ownership record and its record. It does not delete the record if another
// owner has an ownership record for it too.
func planDelete(out *changes, listing *Listing, m listedOwnership) {
	out.deleteOwnership = append(out.deleteOwnership, m.entry.original)

	for _, other := range listing.ownershipRecordsFor(m.name) {
		if other.record == m.record && (other.operator != m.operator || other.uid != m.uid) {
			return
		}
	}

	for _, e := range listing.names[m.name] {
		if slices.Contains([]string{typeA, typeAAAA, typePTR}, e.kind) && recordID(e.kind, e.value) == m.record {
			out.deleteRecords = append(out.deleteRecords, e.original)
		}
	}
}

// planOrphans plans to delete all records of the operator whose machine no longer has a registration.
// isKnown returns whether a machine with the UID has a registration.
func planOrphans(listing *Listing, operator string, isKnown func(uid string) bool) changes {
	var out changes

	for _, m := range listing.ownershipRecords() {
		if m.operator == encodeID(operator) && !isKnown(m.uid) {
			planDelete(&out, listing, m)
		}
	}

	return out
}
