// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// newCompareOptions compares models. A missing list is equal to an empty one.
func newCompareOptions() cmp.Options {
	return cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmpopts.EquateEmpty(),
	}
}

// generator generates networks from a seed.
type generator struct{ *rand.Rand }

func (s generator) newMAC() string {
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", s.IntN(256), s.IntN(256), s.IntN(256))
}

func (s generator) newAddr(v6 bool) netip.Addr {
	if !v6 {
		return netip.AddrFrom4([4]byte{byte(1 + s.IntN(222)), byte(s.IntN(256)), byte(s.IntN(256)), byte(s.IntN(256))})
	}

	var b [16]byte
	for i := range b {
		b[i] = byte(s.IntN(256) * s.IntN(2))
	}

	b[0] = 0x20

	return netip.AddrFrom16(b)
}

func (s generator) newPrefix(v6 bool) netip.Prefix {
	bits := 1 + s.IntN(31) // the schema has no netmask of a single address
	if v6 {
		bits = 1 + s.IntN(128)
	}

	return netip.PrefixFrom(s.newAddr(v6), bits)
}

// newNetwork generates a network with the order that both formats have (Ethernet devices, bonds and VLANs;
// IPv4 addresses and routes first), and with names that both formats can express.
func (s generator) newNetwork() *netdata.Network {
	n := &netdata.Network{}
	ethernets := 1 + s.IntN(4)

	for i := range ethernets {
		l := netdata.Link{ID: fmt.Sprintf("link-%d", i), MAC: s.newMAC()}
		if s.IntN(3) > 0 {
			l.Name = fmt.Sprintf("eno%d", 101+i)
		}

		n.Links = append(n.Links, l)
	}

	if s.IntN(3) == 0 {
		l := netdata.Link{ID: "bond0", Name: "bond0", MAC: s.newMAC(), Bond: &netdata.Bond{Mode: netdata.BondModes()[s.IntN(7)]}}
		for i := range ethernets {
			l.Bond.Links = append(l.Bond.Links, n.Links[i].ID)
		}

		n.Links = append(n.Links, l)
	}

	if s.IntN(3) == 0 {
		n.Links = append(n.Links, netdata.Link{ID: "vlan7", Name: "vlan7", MAC: s.newMAC(),
			VLAN: &netdata.VLAN{ID: s.IntN(4095), Link: n.Links[len(n.Links)-1].ID}})
	}

	for i := range n.Links {
		s.configureLink(&n.Links[i])
	}

	n.Links[0].DHCP4 = true // name servers need an interface

	for i := range s.IntN(4) {
		n.DNS.Servers = append(n.DNS.Servers, s.newAddr(i%2 == 1))
		n.DNS.Search = append(n.DNS.Search, fmt.Sprintf("d%d.example.com", i))
	}

	return n
}

func (s generator) configureLink(l *netdata.Link) {
	l.MTU = s.IntN(2) * (1280 + s.IntN(8000))
	l.DHCP4, l.DHCP6, l.SLAAC = s.IntN(4) == 0, s.IntN(4) == 0, s.IntN(4) == 0

	for _, v6 := range []bool{false, true} {
		for range s.IntN(3) {
			l.Addresses = append(l.Addresses, s.newPrefix(v6))
		}

		if s.IntN(2) == 0 {
			l.Routes = append(l.Routes, netdata.DefaultRoute(s.newAddr(v6)))
		}

		for range s.IntN(3) {
			l.Routes = append(l.Routes, netdata.Route{To: s.newPrefix(v6).Masked(), Via: s.newAddr(v6)})
		}
	}
}

// addDHCP adds settings that only version 2 can express.
func (s generator) addDHCP(n *netdata.Network) {
	maybe := func() *bool {
		on := s.IntN(2) == 0

		return []*bool{nil, &on}[s.IntN(2)]
	}

	for i := range n.Links {
		l := &n.Links[i]

		switch {
		case !l.DHCP4 && !l.DHCP6:
			l.NoDHCP = s.IntN(2) == 0
		case l.DHCP4:
			l.Options = &netdata.DHCPOptions{
				Identifier:   []string{"", netdata.IdentifierMAC, netdata.IdentifierDUID}[s.IntN(3)],
				SendHostname: maybe(), UseDNS: maybe(), UseRoutes: maybe(), Hostname: []string{"", "true", "ci-1"}[s.IntN(3)],
			}
			if *l.Options == (netdata.DHCPOptions{}) {
				l.Options = nil
			}
		}
	}
}

// runs is the number of generated inputs.
const runs = 100

func newGenerator(seed uint64) generator { return generator{rand.New(rand.NewPCG(seed, 1))} }

func TestWriteAndParse(t *testing.T) {
	t.Parallel()

	schema := loadSchema(t)
	for _, format := range []netdata.Format{netdata.FormatOpenStack, netdata.FormatV2} {
		property.Check(t, string(format), property.Options{Runs: runs}, prop.ForAll(func(seed uint64) (string, error) {
			random := newGenerator(seed)
			want := random.newNetwork()

			write := want.EncodeOpenStack
			if format == netdata.FormatV2 {
				random.addDHCP(want)

				write = want.EncodeV2
			}

			data, err := write()
			if err != nil {
				return "", err
			}

			if format == netdata.FormatOpenStack {
				if err := validate(schema, data); err != nil {
					return "", fmt.Errorf("schema: %w\n%s", err, data)
				}
			}

			got, is, err := netdata.Parse(data)
			if err != nil || is != format {
				return "", fmt.Errorf("is %s: %w\n%s", is, err, data)
			}

			if diff := cmp.Diff(want, got, newCompareOptions()); diff != "" {
				return diff + string(data), nil
			}

			return "", nil
		}, gen.UInt64()))
	}
}

// listHardTexts returns texts that YAML or JSON must quote or escape.
func listHardTexts() []string {
	return []string{
		"", "yes", "0644", "1:30", "null", "~", " lead", "trail ", "a: b", "# no comment", "- x", "line\nline\n", "\ttab\n",
		"many\n\n\nblank\n\n", "  indented\nless\n", "*alias", "&anchor", "!!tag", "'", `"`, "%", "@", "é\u2028\u00a0", "\x01",
		"\ufeff", "<<", "=", "1e3", "0o7", "2001-01-01", "\n", " \n ", "...", "---\n", "</script>", "\u0085", "😀",
	}
}

// newUnknownValue generates a value that a user may add to the fields that this package knows.
func (s generator) newUnknownValue(depth int) any {
	texts := listHardTexts()

	switch s.IntN(6 - 2*min(1, max(0, 1-depth))) {
	case 0:
		return texts[s.IntN(len(texts))]
	case 1:
		return s.IntN(1_000_000) - 500_000
	case 2:
		return s.IntN(2) == 0
	case 3:
		return float64(s.IntN(1000)) + 0.5
	case 4:
		out := []any{}
		for range s.IntN(4) {
			out = append(out, s.newUnknownValue(depth-1))
		}

		return out
	default:
		return s.addUnknownKeys(map[string]any{}, depth-1)
	}
}

// addUnknownKeys adds keys that no format defines.
func (s generator) addUnknownKeys(m map[string]any, depth int) map[string]any {
	texts := listHardTexts()
	for range s.IntN(4) {
		m["x-"+texts[s.IntN(len(texts))]] = s.newUnknownValue(depth)
	}

	return m
}

// parseValues parses JSON or YAML into plain values, with one type for all numbers.
func parseValues(t *testing.T, data []byte) map[string]any {
	t.Helper()

	var v map[string]any
	if err := yaml.Unmarshal(data, &v); json.Valid(data) || err != nil {
		if err := json.Unmarshal(data, &v); err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
	}

	plain, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}

	var out map[string]any
	if err := json.Unmarshal(plain, &out); err != nil {
		t.Fatal(err)
	}

	return out
}

// newUserData generates network data with an interface eno101 that has no address, and other data.
func (s generator) newUserData(format netdata.Format) map[string]any {
	if format == netdata.FormatV2 {
		eth := s.addUnknownKeys(map[string]any{"mtu": 1500, "routes": []any{map[string]any{"to": "0.0.0.0/0", "via": "10.0.0.1"}}}, 2)
		if s.IntN(2) == 0 {
			eth["addresses"] = []any{"172.16.0.9/16"}
		}

		return s.addUnknownKeys(map[string]any{"version": 2, "ethernets": map[string]any{"eno101": eth,
			"other": s.addUnknownKeys(map[string]any{"addresses": []any{"172.16.0.1/12"}}, 2)}}, 3)
	}

	network := s.addUnknownKeys(map[string]any{"id": "n4", "network_id": "n4", "type": "ipv4", "link": "l0"}, 2)
	networks := []any{network, s.addUnknownKeys(map[string]any{"id": "network0", "network_id": "x", "type": "ipv4", "link": "l1",
		"ip_address": "10.9.9.9", "netmask": "255.0.0.0"}, 2)}

	return s.addUnknownKeys(map[string]any{
		"links": []any{
			s.addUnknownKeys(map[string]any{"id": "l0", "type": "phy", "name": "eno101", "ethernet_mac_address": "52:54:00:00:00:01"}, 2),
			s.addUnknownKeys(map[string]any{"id": "l1", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:02"}, 2),
		},
		"networks": networks,
		"services": []any{s.addUnknownKeys(map[string]any{"type": "dns", "address": "10.0.0.2"}, 2)},
	}, 3)
}

func TestExpandKeepsOtherData(t *testing.T) {
	t.Parallel()

	v4, v6 := netip.MustParsePrefix("10.0.0.5/24"), netip.MustParsePrefix("2001:db8::5/64")
	a := netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{v4, v6}}

	for _, format := range []netdata.Format{netdata.FormatOpenStack, netdata.FormatV2} {
		for name, marshal := range map[string]func(any) ([]byte, error){"JSON": json.Marshal, "YAML": yaml.Marshal} {
			property.Check(t, string(format)+" in "+name, property.Options{Runs: runs}, prop.ForAll(func(seed uint64) (string, error) {
				user := newGenerator(seed).newUserData(format)

				data, err := marshal(user)
				if err != nil {
					return "", err
				}

				if again := map[string]any{}; yaml.Unmarshal(data, &again) != nil && name == "YAML" {
					return "", nil // the library cannot read its own output
				}

				want := parseValues(t, data)

				out, is, err := netdata.Expand(data, a)
				if err != nil || is != format {
					return "", fmt.Errorf("is %s: %w\n%s", is, err, data)
				}

				if twice, _, err := netdata.Expand(out, a); err != nil || !bytes.Equal(twice, out) {
					return "", fmt.Errorf("twice: %w\n%s", err, cmp.Diff(string(out), string(twice)))
				}

				expandByHand(want, format)

				return cmp.Diff(want, parseValues(t, out)), nil
			}, gen.UInt64()))
		}
	}
}

// expandByHand adds the addresses at the places that newUserData leaves empty.
func expandByHand(v map[string]any, format netdata.Format) {
	if format == netdata.FormatV2 {
		eth := v["ethernets"].(map[string]any)["eno101"].(map[string]any)
		there, _ := eth["addresses"].([]any)
		eth["addresses"] = append(there, "10.0.0.5/24", "2001:db8::5/64")

		return
	}

	networks := v["networks"].([]any)
	first := networks[0].(map[string]any)
	first["ip_address"], first["netmask"] = "10.0.0.5", "255.255.255.0"
	v["networks"] = append(networks, map[string]any{"id": "network1", "network_id": "network1", "type": "ipv6", "link": "l0",
		"ip_address": "2001:db8::5", "netmask": "ffff:ffff:ffff:ffff::"})
}

func loadSchema(t *testing.T) *openapi3.Schema {
	t.Helper()

	doc, err := openapi3.NewLoader().LoadFromFile("testdata/network_data.schema.json")
	if err != nil {
		t.Fatal(err)
	}

	return doc.Components.Schemas["NetworkData"].Value
}

func validate(schema *openapi3.Schema, data []byte) error {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}

	return schema.VisitJSON(v)
}

// TestSchemaRejects: a schema that accepts everything would prove nothing.
func TestSchemaRejects(t *testing.T) {
	t.Parallel()

	schema := loadSchema(t)

	good, err := newGenerator(3).newNetwork().EncodeOpenStack()
	if err != nil || validate(schema, good) != nil {
		t.Fatal(err, validate(schema, good))
	}

	for _, change := range [][2]string{
		{`"services"`, `"service"`}, {`"phy"`, `"physical"`}, {`"ethernet_mac_address"`, `"mac"`}, {`"ipv4_dhcp"`, `"dhcp"`}, {`"network_id"`, `"x"`},
	} {
		bad := strings.Replace(string(good), change[0], change[1], 1)
		if validate(schema, []byte(bad)) == nil || bad == string(good) {
			t.Errorf("%v: is accepted", change)
		}
	}
}

func FuzzParse(f *testing.F) {
	for seed := range uint64(4) {
		n := newGenerator(seed).newNetwork()
		a, errA := n.EncodeOpenStack()
		b, errB := n.EncodeV2()

		if errA != nil || errB != nil {
			f.Fatal(errA, errB)
		}

		f.Add(a)
		f.Add(b)
	}

	for _, s := range []string{"", "{}", "a: &a [*a]", "<<: {version: 2}", "version: 2\nethernets:\n  a: null\n", "network: {version: 2}"} {
		f.Add([]byte(s))
	}

	f.Fuzz(func(t *testing.T, data []byte) {
		a := netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{netip.MustParsePrefix("10.0.0.5/24")}}
		if out, format, err := netdata.Expand(data, a); err == nil {
			again, is, err := netdata.Expand(out, a)
			if err != nil || is != format || !bytes.Equal(again, out) {
				t.Errorf("expanding again: %v\n%s\n%s", err, out, again)
			}
		}

		a.Interface = ""
		if out, _, err := netdata.Expand(data, a); err == nil {
			if there, err := netdata.HasAddress(out, a.Addresses); err != nil || !there {
				t.Errorf("lacks the address: %v\n%s", err, out)
			}
		}

		n, _, err := netdata.Parse(data)
		if err != nil {
			return
		}

		for i := range n.Links { // names and order as in version 2
			l := &n.Links[i]
			if l.VLAN != nil || l.Bond != nil {
				l.Name = l.ID
			}

			l.Routes = slices.Clone(l.Routes)
		}

		out, err := n.EncodeV2()
		if err != nil {
			return
		}

		if _, _, err := netdata.Parse(out); err != nil {
			t.Errorf("the output cannot be parsed: %v\n%s", err, out)
		}
	})
}

// compact returns JSON without blanks.
func compact(t *testing.T, data []byte) string {
	t.Helper()

	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		t.Fatal(err)
	}

	return b.String()
}
