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

// Types of the records that we write.
const (
	typeA    = "A"
	typeAAAA = "AAAA"
	typePTR  = "PTR"
	typeTXT  = "TXT"
)

// canonical is a name in lower case without the dot at its end.
func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// zoneOf gives the longest zone that a name is in.
func zoneOf(zones []string, name string) (string, bool) {
	name, found := canonical(name), ""

	for _, zone := range zones {
		zone = canonical(zone)
		if (name == zone || strings.HasSuffix(name, "."+zone)) && len(zone) > len(found) {
			found = zone
		}
	}

	return found, found != ""
}

// reverseName is the name of an address's PTR record.
func reverseName(addr netip.Addr) string {
	name, err := mdns.ReverseAddr(addr.String())
	if err != nil { // the address would have no text of its own
		return ""
	}

	return canonical(name)
}

// registrable says whether machines elsewhere can mean the same thing by an address.
func registrable(addr netip.Addr) bool {
	return addr.Zone() == "" && !addr.IsUnspecified() && !addr.IsLoopback() && !addr.IsMulticast() && !addr.IsLinkLocalUnicast()
}

// wanted are the records of a machine, and the addresses that no reverse zone is for. It
// is a Configuration error if the name is in none of the zones, or no address is of use.
func wanted(spec v1alpha1.DNSRegistrationSpec, zones []string) (records []v1alpha1.DNSRecord, unreversed []string, err error) {
	name := canonical(spec.FQDN)

	zone, ok := zoneOf(zones, name)
	if !ok {
		return nil, nil, errclass.New(errclass.Configuration, "ZoneNotConfigured",
			"register %s: it is in none of the zones %s: add its zone to dns.dnsProvider.zones of the HypervisorCluster, "+
				"or change the domain", name, strings.Join(zones, ", "))
	}

	if len(markName(name)) > maxName {
		return nil, nil, errclass.New(errclass.Configuration, "NameTooLong",
			"register %s: the name is too long to be marked: it may have %d characters", name, maxName-len(markLabel))
	}

	for _, text := range spec.Addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil || !registrable(addr) {
			continue
		}

		addr = addr.Unmap()
		kind := typeA

		if addr.Is6() {
			kind = typeAAAA
		}

		records = append(records, v1alpha1.DNSRecord{Zone: zone, Name: name, Type: kind, Value: addr.String()})

		reverse := reverseName(addr)
		if zone, ok := zoneOf(zones, reverse); ok {
			records = append(records, v1alpha1.DNSRecord{Zone: zone, Name: reverse, Type: typePTR, Value: name})
		} else {
			unreversed = append(unreversed, addr.String())
		}
	}

	if len(records) == 0 {
		return nil, nil, errclass.New(errclass.Configuration, "NoUsableAddress",
			"register %s: its addresses (%s) are loopback, link-local or multicast and mean nothing to others",
			name, strings.Join(spec.Addresses, ", "))
	}

	return records, unreversed, nil
}

// normal is a record's value in the one form in which values are compared.
func normal(kind, value string) string {
	switch kind {
	case typeA, typeAAAA:
		if addr, err := netip.ParseAddr(value); err == nil {
			return addr.String()
		}

		return value
	case typeTXT:
		return value
	default:
		return canonical(value)
	}
}

// entry is one record of a zone as it was listed.
type entry struct {
	kind, value string
	// listed is what the DNS service gave, for deleting just that.
	listed libdns.Record
}

// Listing is everything in one zone at one time.
type Listing struct {
	zone  string
	names map[string][]entry
}

// newListing sorts a zone's records by name.
func newListing(zone string, records []libdns.Record) *Listing {
	listing := &Listing{zone: canonical(zone), names: map[string][]entry{}}

	for _, record := range records {
		rr := record.RR()
		name := canonical(libdns.AbsoluteName(rr.Name, listing.zone+"."))
		listing.names[name] = append(listing.names[name], entry{
			kind: strings.ToUpper(rr.Type), value: normal(rr.Type, rr.Data), listed: record,
		})
	}

	return listing
}

// occupied are the types that claim a name for somebody: who has one of them there says
// what the name means.
func occupied(kind string) bool {
	return slices.Contains([]string{typeA, typeAAAA, typePTR, "CNAME", "DNAME", "NS"}, kind)
}
