// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/libdns/libdns"
	mdns "github.com/miekg/dns"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
)

// Types of the records that the operator writes.
const (
	typeA    = "A"
	typeAAAA = "AAAA"
	typePTR  = "PTR"
	typeTXT  = "TXT"
)

// canonicalName returns a DNS name in lower case without the dot at its end.
func canonicalName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// findZone returns the longest zone that contains a name, and false if no zone does.
func findZone(zones []string, name string) (string, bool) {
	name, found := canonicalName(name), ""

	for _, zone := range zones {
		zone = canonicalName(zone)
		if (name == zone || strings.HasSuffix(name, "."+zone)) && len(zone) > len(found) {
			found = zone
		}
	}

	return found, found != ""
}

// reverseName returns the name of an address's PTR record.
func reverseName(addr netip.Addr) string {
	name, err := mdns.ReverseAddr(addr.String())
	if err != nil { // impossible for a valid address
		return ""
	}

	return canonicalName(name)
}

// isRegistrable returns whether an address has a meaning for other machines.
func isRegistrable(addr netip.Addr) bool {
	return addr.Zone() == "" && !addr.IsUnspecified() && !addr.IsLoopback() && !addr.IsMulticast() && !addr.IsLinkLocalUnicast()
}

// buildRecords returns the records of a machine, and the addresses without a configured reverse zone. It
// returns an error of class Configuration if the name is in none of the zones or is too long, or if no
// address can be registered.
func buildRecords(
	spec v1alpha1.DNSRegistrationSpec, zones []string,
) (records []v1alpha1.DNSRecord, withoutReverseZone []string, err error) {
	name := canonicalName(spec.FQDN)

	zone, ok := findZone(zones, name)
	if !ok {
		return nil, nil, errclass.New(errclass.Configuration, "ZoneNotConfigured",
			"register %s: it is in none of the zones %s: add its zone to dns.dnsProvider.zones of the HypervisorCluster, "+
				"or change the domain", name, strings.Join(zones, ", "))
	}

	if len(ownershipName(name)) > maxName {
		return nil, nil, errclass.New(errclass.Configuration, "NameTooLong",
			"register %s: the name is too long for its ownership record: it can have %d characters", name, maxName-len(ownershipPrefix))
	}

	for _, text := range spec.Addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil || !isRegistrable(addr) {
			continue
		}

		addr = addr.Unmap()
		kind := typeA

		if addr.Is6() {
			kind = typeAAAA
		}

		records = append(records, v1alpha1.DNSRecord{Zone: zone, Name: name, Type: kind, Value: addr.String()})

		reverse := reverseName(addr)
		if zone, ok := findZone(zones, reverse); ok {
			records = append(records, v1alpha1.DNSRecord{Zone: zone, Name: reverse, Type: typePTR, Value: name})
		} else {
			withoutReverseZone = append(withoutReverseZone, addr.String())
		}
	}

	if len(records) == 0 {
		return nil, nil, errclass.New(errclass.Configuration, "NoUsableAddress",
			"register %s: its addresses (%s) are loopback, link-local or multicast, so other machines cannot use them",
			name, strings.Join(spec.Addresses, ", "))
	}

	return records, withoutReverseZone, nil
}

// normalizeValue returns a record's value in a canonical form for comparisons.
func normalizeValue(kind, value string) string {
	switch kind {
	case typeA, typeAAAA:
		if addr, err := netip.ParseAddr(value); err == nil {
			return addr.String()
		}

		return value
	case typeTXT:
		return value
	default:
		return canonicalName(value)
	}
}

// entry is one record of a zone as it was listed.
type entry struct {
	kind, value string
	// original is the record from the DNS service. It is needed to delete exactly this record.
	original libdns.Record
}

// Listing has all records of one zone at one time.
type Listing struct {
	zone  string
	names map[string][]entry
}

func newListing(zone string, records []libdns.Record) *Listing {
	listing := &Listing{zone: canonicalName(zone), names: map[string][]entry{}}

	for _, record := range records {
		rr := record.RR()
		name := canonicalName(libdns.AbsoluteName(rr.Name, listing.zone+"."))
		listing.names[name] = append(listing.names[name], entry{
			kind: strings.ToUpper(rr.Type), value: normalizeValue(rr.Type, rr.Data), original: record,
		})
	}

	return listing
}

// canClaimName returns whether a record of this type claims its name for an owner. The owner of such a
// record decides what the name means.
func canClaimName(kind string) bool {
	return slices.Contains([]string{typeA, typeAAAA, typePTR, "CNAME", "DNAME", "NS"}, kind)
}
