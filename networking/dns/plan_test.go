// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"github.com/libdns/libdns"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// zoneModel is a zone in memory with the semantics of libdns: sets of records by their exact value.
// Properties are checked with it. Other tests use real servers.
type zoneModel map[string]libdns.Record

func formatRecordKey(record libdns.Record) string {
	rr := record.RR()

	return rr.Name + " " + rr.Type + " " + normalizeValue(rr.Type, rr.Data)
}

func (m zoneModel) newListing() *Listing {
	var records []libdns.Record
	for _, record := range m {
		records = append(records, record)
	}

	return newListing(forward, records)
}

func (m zoneModel) apply(todo changes) {
	for _, record := range slices.Concat(todo.addOwnership, todo.addRecords) {
		m[formatRecordKey(record)] = record
	}

	for _, record := range slices.Concat(todo.deleteRecords, todo.deleteOwnership) {
		delete(m, formatRecordKey(record))
	}
}

// zoneEvent is one event in a zone.
type zoneEvent struct {
	who, name, value int
	isRemoval        bool
}

func genEvents() gopter.Gen {
	return gen.SliceOf(gopter.CombineGens(gen.IntRange(0, 4), gen.IntRange(0, 2), gen.IntRange(0, 3), gen.Bool()).Map(
		func(v []any) zoneEvent { return zoneEvent{v[0].(int), v[1].(int), v[2].(int), v[3].(bool)} }))
}

// applyEvents applies events: another writer changes any records, or a machine of one of two operators is
// registered or removed. It returns a text if an event changed a record of another owner.
func applyEvents(deeds []zoneEvent) string {
	zone := zoneModel{}
	foreign := map[string]bool{}

	for _, d := range deeds {
		name := fmt.Sprintf("vm%d", d.name)
		value := fmt.Sprintf("192.0.2.%d", d.value)

		if d.who == 0 { // another writer
			record := libdns.RR{Name: name, Type: typeA, Data: value, TTL: time.Minute}
			if _, ours := zone[formatRecordKey(record)]; !ours {
				zone[formatRecordKey(record)] = record
				foreign[formatRecordKey(record)] = true
			}

			continue
		}

		owner := Owner{Operator: fmt.Sprintf("op-%d", d.who/3), UID: fmt.Sprintf("u%d-%d", d.who, d.name), Claim: "ci/" + name}
		want := []v1alpha1.DNSRecord{{Zone: forward, Name: name + "." + forward, Type: typeA, Value: value}}

		if d.isRemoval {
			want = nil
		}

		todo := planChanges(zone.newListing(), owner, want, time.Minute)
		if harm := findHarm(zone, todo, owner, foreign); harm != "" {
			return harm
		}

		zone.apply(todo)

		if again := planChanges(zone.newListing(), owner, want, time.Minute); !again.isEmpty() {
			return "a second pass makes changes"
		}
	}

	return ""
}

// findHarm returns what a plan would do to records without an ownership record of the owner.
func findHarm(zone zoneModel, todo changes, owner Owner, foreign map[string]bool) string {
	for _, record := range todo.deleteRecords {
		if foreign[formatRecordKey(record)] {
			return "deletes a record of another writer: " + formatRecordKey(record)
		}
	}

	for _, record := range todo.deleteOwnership {
		if m, ok := parseOwnership(record.RR().Data); !ok || !m.belongsTo(owner) {
			return "deletes an ownership record of another owner: " + formatRecordKey(record)
		}
	}

	for _, record := range todo.addRecords {
		name := record.RR().Name
		for other := range foreign {
			if strings.HasPrefix(other, name+" ") {
				return "adds to a name of another writer: " + name
			}
		}

		for _, there := range zone {
			if m, ok := parseOwnership(there.RR().Data); ok && there.RR().Name == ownershipPrefix+name && !m.belongsTo(owner) {
				return "adds to a name that another machine has marked: " + name
			}
		}
	}

	return ""
}

// The operator never changes a record of another writer, after any events in the zone.
func TestRecordsOfOthersAreUnchanged(t *testing.T) {
	t.Parallel()

	property.Check(t, "plans touch only what the owner has marked", property.Options{Runs: 300}, prop.ForAll(applyEvents, genEvents()))
}

func TestZoneOf(t *testing.T) {
	t.Parallel()

	zones := []string{"example.com", "ci.example.com", "0.10.in-addr.arpa", "in-addr.arpa", "1.0.10.in-addr.arpa"}

	for name, want := range map[string]string{
		"vm.CI.example.com.": "ci.example.com", "vm.example.com": "example.com", "ci.example.com": "ci.example.com",
		"vm.xci.example.com": "example.com", "vm.xexample.com": "", "5.1.0.10.in-addr.arpa": "1.0.10.in-addr.arpa",
		"5.2.0.10.in-addr.arpa": "0.10.in-addr.arpa", "5.2.0.192.in-addr.arpa": "in-addr.arpa", "": "",
	} {
		if got, ok := findZone(zones, name); got != want || ok != (want != "") {
			t.Errorf("zoneOf(%q) = %q, %t", name, got, ok)
		}
	}
}

func TestDesiredRecords(t *testing.T) {
	t.Parallel()

	long := strings.Repeat("a.", 115) + forward

	for _, row := range []struct {
		why       string
		fqdn      string
		addresses []string
		reason    string
	}{
		{"a name in no zone", "vm.other.example", []string{"192.0.2.1"}, "ZoneNotConfigured"},
		{"addresses that only the machine can use", "vm." + forward, []string{"127.0.0.1", "fe80::1", "169.254.1.1", "::"}, "NoUsableAddress"},
		{"a name that is too long for its ownership record", long, []string{"192.0.2.1"}, "NameTooLong"},
		{"a mapped address", "vm." + forward, []string{"::ffff:192.0.2.1"}, ""},
	} {
		records, _, err := buildRecords(v1alpha1.DNSRegistrationSpec{FQDN: row.fqdn, Addresses: row.addresses}, []string{forward})
		if got := errclass.ReasonOf(err, "none"); err != nil && got != row.reason || err == nil && row.reason != "" {
			t.Errorf("%s: %v", row.why, err)
		}

		if row.reason == "" && !cmp.Equal(records, []v1alpha1.DNSRecord{{Zone: forward, Name: "vm." + forward, Type: typeA, Value: "192.0.2.1"}}) {
			t.Errorf("%s: %v", row.why, records)
		}
	}
}

func TestStrayOwnershipRecords(t *testing.T) {
	t.Parallel()

	zone := zoneModel{}
	record := v1alpha1.DNSRecord{Zone: forward, Name: "vm1." + forward, Type: typeA, Value: "192.0.2.1"}
	zone.apply(planChanges(zone.newListing(), Owner{Operator: "op", UID: "u1"}, []v1alpha1.DNSRecord{record}, time.Minute))

	if todo := planOrphans(zone.newListing(), "op", func(string) bool { return true }); !todo.isEmpty() {
		t.Errorf("known: %+v", todo)
	}

	if todo := planOrphans(zone.newListing(), "other", func(string) bool { return false }); !todo.isEmpty() {
		t.Errorf("another operator's: %+v", todo)
	}

	zone.apply(planOrphans(zone.newListing(), "op", func(string) bool { return false }))

	if len(zone) > 0 {
		t.Errorf("left: %v", zone)
	}
}

// An ownership record is parsed as it was written and fits into one character-string. No other text is
// parsed as an ownership record.
func FuzzMark(f *testing.F) {
	f.Add("op-1", "uid-1", "ci/vm1", "192.0.2.1")
	f.Add("an operator, with a comma", strings.Repeat("u", 100), strings.Repeat("n", 63)+"/"+strings.Repeat("m", 63), "2001:db8::1")

	f.Fuzz(func(t *testing.T, operator, uid, claim, value string) {
		owner := Owner{Operator: operator, UID: uid, Claim: claim}
		record := v1alpha1.DNSRecord{Type: typeA, Value: value}
		text := ownershipText(owner, record)

		if len(text) > maxOwnershipText {
			t.Errorf("the ownership record has %d bytes", len(text))
		}

		got, ok := parseOwnership(text)
		if plainClaim := !strings.ContainsAny(claim, `,="`); plainClaim && (!ok || !got.belongsTo(owner) || got.record != recordID(typeA, value)) {
			t.Errorf("parseMark(%q) = %+v, %t", text, got, ok)
		}

		if got, ok := parseOwnership(value); ok && (got.operator == "" || got.uid == "" || got.record == "") {
			t.Errorf("parseMark(%q) = %+v", value, got)
		}
	})
}

func TestReverseNames(t *testing.T) {
	t.Parallel()

	for text, want := range map[string]string{
		"192.0.2.7":   "7.2.0.192.in-addr.arpa",
		"2001:db8::7": "7.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.8.b.d.0.1.0.0.2.ip6.arpa",
	} {
		if got := reverseName(netip.MustParseAddr(text)); got != want {
			t.Errorf("reverseName(%s) = %s", text, got)
		}
	}
}
