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

// conflict is a record that we cannot write because its name is somebody else's.
type conflict struct {
	record v1alpha1.DNSRecord
	// found is what is there.
	found string
	// held says that another machine of ours has the name, and may soon be gone.
	held bool
}

// String names the record that is in the way.
func (c conflict) String() string {
	if c.held {
		return fmt.Sprintf("%s %s belongs to %s", c.record.Type, c.record.Name, c.found)
	}

	return fmt.Sprintf("%s has %s, which is not ours", c.record.Name, c.found)
}

// changes are what is to be done in one zone, in this order.
type changes struct {
	addMarks, addRecords       []libdns.Record
	deleteRecords, deleteMarks []libdns.Record
	conflicts                  []conflict
}

func (c changes) none() bool {
	return len(c.addMarks)+len(c.addRecords)+len(c.deleteRecords)+len(c.deleteMarks) == 0
}

// marked is a mark at its place.
type marked struct {
	mark

	name  string
	entry entry
}

// marks are all marks in the zone.
func (l *Listing) marks() []marked {
	var found []marked

	for name, entries := range l.names {
		owned, ok := strings.CutPrefix(name, markLabel)
		if !ok {
			continue
		}

		for _, e := range entries {
			if m, ok := parseMark(e.value); ok && e.kind == typeTXT {
				found = append(found, marked{mark: m, name: owned, entry: e})
			}
		}
	}

	slices.SortFunc(found, func(a, b marked) int {
		return strings.Compare(a.name+" "+a.entry.value, b.name+" "+b.entry.value)
	})

	return found
}

// marksOf are the marks of one name's records.
func (l *Listing) marksOf(name string) []mark {
	var found []mark

	for _, e := range l.names[markName(name)] {
		if m, ok := parseMark(e.value); ok && e.kind == typeTXT {
			found = append(found, m)
		}
	}

	return found
}

// of says whether a mark is the owner's.
func (m mark) of(owner Owner) bool { return m.operator == id(owner.Operator) && m.uid == id(owner.UID) }

// plan compares a zone with the records that the owner's machine is to have there. It
// removes what the owner has marked and does not want, adds what is missing, and leaves
// alone what has no mark of the owner's.
func plan(listing *Listing, owner Owner, want []v1alpha1.DNSRecord, ttl time.Duration) changes {
	var out changes

	wantedIDs := map[string]bool{}

	for _, record := range want {
		wantedIDs[record.Name+" "+recordID(record.Type, record.Value)] = true

		if found, ok := inTheWay(listing, owner, record); ok {
			out.conflicts = append(out.conflicts, found)

			continue
		}

		add(&out, listing, owner, record, ttl)
	}

	for _, m := range listing.marks() {
		if m.of(owner) && !wantedIDs[m.name+" "+m.record] {
			remove(&out, listing, m)
		}
	}

	return out
}

// inTheWay finds what keeps us from a name: a record that isn't marked as the owner's, or
// the mark of another machine.
func inTheWay(listing *Listing, owner Owner, record v1alpha1.DNSRecord) (conflict, bool) {
	marks := listing.marksOf(record.Name)

	for _, e := range listing.names[record.Name] {
		if !occupied(e.kind) {
			continue
		}

		mine := slices.ContainsFunc(marks, func(m mark) bool {
			return m.of(owner) && m.record == recordID(e.kind, e.value)
		})
		ours := slices.ContainsFunc(marks, func(m mark) bool {
			return m.operator == id(owner.Operator) && m.record == recordID(e.kind, e.value)
		})

		if !mine && !ours {
			return conflict{record: record, found: e.kind + " " + e.value}, true
		}
	}

	for _, m := range marks {
		if m.operator == id(owner.Operator) && m.uid != id(owner.UID) {
			return conflict{record: record, found: m.machine, held: true}, true
		}
	}

	return conflict{}, false
}

// add plans the record and its mark, whichever is missing.
func add(out *changes, listing *Listing, owner Owner, record v1alpha1.DNSRecord, ttl time.Duration) {
	hasMark := slices.ContainsFunc(listing.marksOf(record.Name), func(m mark) bool {
		return m.of(owner) && m.record == recordID(record.Type, record.Value)
	})
	hasRecord := slices.ContainsFunc(listing.names[record.Name], func(e entry) bool {
		return e.kind == record.Type && e.value == normal(record.Type, record.Value)
	})

	if !hasMark {
		out.addMarks = append(out.addMarks, libdns.TXT{
			Name: libdns.RelativeName(markName(record.Name)+".", listing.zone+"."), TTL: ttl, Text: markText(owner, record),
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

// remove plans the end of a mark and of the record it stands for, unless another mark
// stands for that too.
func remove(out *changes, listing *Listing, m marked) {
	out.deleteMarks = append(out.deleteMarks, m.entry.listed)

	for _, other := range listing.marksOf(m.name) {
		if other.record == m.record && (other.operator != m.operator || other.uid != m.uid) {
			return
		}
	}

	for _, e := range listing.names[m.name] {
		if slices.Contains([]string{typeA, typeAAAA, typePTR}, e.kind) && recordID(e.kind, e.value) == m.record {
			out.deleteRecords = append(out.deleteRecords, e.listed)
		}
	}
}

// stray plans the end of everything that the operator has marked for a claim that is not
// known any more.
func stray(listing *Listing, operator string, known func(uid string) bool) changes {
	var out changes

	for _, m := range listing.marks() {
		if m.operator == id(operator) && !known(m.uid) {
			remove(&out, listing, m)
		}
	}

	return out
}
