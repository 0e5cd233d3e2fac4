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

// compare compares models; a missing list is an empty one.
func compare() cmp.Options {
	return cmp.Options{
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
		cmpopts.EquateEmpty(),
	}
}

// sampler makes networks; one seed makes one of them.
type sampler struct{ *rand.Rand }

func (s sampler) mac() string {
	return fmt.Sprintf("52:54:00:%02x:%02x:%02x", s.IntN(256), s.IntN(256), s.IntN(256))
}

func (s sampler) addr(v6 bool) netip.Addr {
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

func (s sampler) prefix(v6 bool) netip.Prefix {
	bits := 1 + s.IntN(31) // the schema has no netmask of a single address
	if v6 {
		bits = 1 + s.IntN(128)
	}

	return netip.PrefixFrom(s.addr(v6), bits)
}

// network is in the order in which both formats have it: of links (Ethernet devices,
// bonds, VLANs), addresses and routes (IPv4 first), and with names that both can say.
func (s sampler) network() *netdata.Network {
	n := &netdata.Network{}
	ethernets := 1 + s.IntN(4)

	for i := range ethernets {
		l := netdata.Link{ID: fmt.Sprintf("link-%d", i), MAC: s.mac()}
		if s.IntN(3) > 0 {
			l.Name = fmt.Sprintf("eno%d", 101+i)
		}

		n.Links = append(n.Links, l)
	}

	if s.IntN(3) == 0 {
		l := netdata.Link{ID: "bond0", Name: "bond0", MAC: s.mac(), Bond: &netdata.Bond{Mode: netdata.BondModes()[s.IntN(7)]}}
		for i := range ethernets {
			l.Bond.Links = append(l.Bond.Links, n.Links[i].ID)
		}

		n.Links = append(n.Links, l)
	}

	if s.IntN(3) == 0 {
		n.Links = append(n.Links, netdata.Link{ID: "vlan7", Name: "vlan7", MAC: s.mac(),
			VLAN: &netdata.VLAN{ID: s.IntN(4095), Link: n.Links[len(n.Links)-1].ID}})
	}

	for i := range n.Links {
		s.configure(&n.Links[i])
	}

	n.Links[0].DHCP4 = true // name servers need somebody

	for i := range s.IntN(4) {
		n.DNS.Servers = append(n.DNS.Servers, s.addr(i%2 == 1))
		n.DNS.Search = append(n.DNS.Search, fmt.Sprintf("d%d.example.com", i))
	}

	return n
}

func (s sampler) configure(l *netdata.Link) {
	l.MTU = s.IntN(2) * (1280 + s.IntN(8000))
	l.DHCP4, l.DHCP6, l.SLAAC = s.IntN(4) == 0, s.IntN(4) == 0, s.IntN(4) == 0

	for _, v6 := range []bool{false, true} {
		for range s.IntN(3) {
			l.Addresses = append(l.Addresses, s.prefix(v6))
		}

		if s.IntN(2) == 0 {
			l.Routes = append(l.Routes, netdata.DefaultRoute(s.addr(v6)))
		}

		for range s.IntN(3) {
			l.Routes = append(l.Routes, netdata.Route{To: s.prefix(v6).Masked(), Via: s.addr(v6)})
		}
	}
}

// dhcp adds what only version 2 has words for.
func (s sampler) dhcp(n *netdata.Network) {
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

// runs is how many inputs are tried.
const runs = 100

func sample(seed uint64) sampler { return sampler{rand.New(rand.NewPCG(seed, 1))} }

func TestWrittenIsRead(t *testing.T) {
	t.Parallel()

	schema := loadSchema(t)
	for _, format := range []netdata.Format{netdata.FormatOpenStack, netdata.FormatV2} {
		property.Check(t, string(format), property.Options{Runs: runs}, prop.ForAll(func(seed uint64) (string, error) {
			random := sample(seed)
			want := random.network()

			write := want.EncodeOpenStack
			if format == netdata.FormatV2 {
				random.dhcp(want)

				write = want.EncodeV2
			}

			data, err := write()
			if err != nil {
				return "", err
			}

			if format == netdata.FormatOpenStack {
				if err := visit(schema, data); err != nil {
					return "", fmt.Errorf("schema: %w\n%s", err, data)
				}
			}

			got, is, err := netdata.Parse(data)
			if err != nil || is != format {
				return "", fmt.Errorf("is %s: %w\n%s", is, err, data)
			}

			if diff := cmp.Diff(want, got, compare()); diff != "" {
				return diff + string(data), nil
			}

			return "", nil
		}, gen.UInt64()))
	}
}

// hardTexts are hard on YAML and on JSON.
func hardTexts() []string {
	return []string{
		"", "yes", "0644", "1:30", "null", "~", " lead", "trail ", "a: b", "# no comment", "- x", "line\nline\n", "\ttab\n",
		"many\n\n\nblank\n\n", "  indented\nless\n", "*alias", "&anchor", "!!tag", "'", `"`, "%", "@", "é\u2028\u00a0", "\x01",
		"\ufeff", "<<", "=", "1e3", "0o7", "2001-01-01", "\n", " \n ", "...", "---\n", "</script>", "\u0085", "😀",
	}
}

// other is any value that a user may have put beside what we know.
func (s sampler) other(depth int) any {
	texts := hardTexts()

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
			out = append(out, s.other(depth-1))
		}

		return out
	default:
		return s.others(map[string]any{}, depth-1)
	}
}

// others adds keys that nobody knows.
func (s sampler) others(m map[string]any, depth int) map[string]any {
	texts := hardTexts()
	for range s.IntN(4) {
		m["x-"+texts[s.IntN(len(texts))]] = s.other(depth)
	}

	return m
}

// values reads JSON or YAML into plain values, all numbers alike.
func values(t *testing.T, data []byte) map[string]any {
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

// userData is network data with an interface eno101 that has no address, and much else.
func (s sampler) userData(format netdata.Format) map[string]any {
	if format == netdata.FormatV2 {
		eth := s.others(map[string]any{"mtu": 1500, "routes": []any{map[string]any{"to": "0.0.0.0/0", "via": "10.0.0.1"}}}, 2)
		if s.IntN(2) == 0 {
			eth["addresses"] = []any{"172.16.0.9/16"}
		}

		return s.others(map[string]any{"version": 2, "ethernets": map[string]any{"eno101": eth,
			"other": s.others(map[string]any{"addresses": []any{"172.16.0.1/12"}}, 2)}}, 3)
	}

	network := s.others(map[string]any{"id": "n4", "network_id": "n4", "type": "ipv4", "link": "l0"}, 2)
	networks := []any{network, s.others(map[string]any{"id": "network0", "network_id": "x", "type": "ipv4", "link": "l1",
		"ip_address": "10.9.9.9", "netmask": "255.0.0.0"}, 2)}

	return s.others(map[string]any{
		"links": []any{
			s.others(map[string]any{"id": "l0", "type": "phy", "name": "eno101", "ethernet_mac_address": "52:54:00:00:00:01"}, 2),
			s.others(map[string]any{"id": "l1", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:02"}, 2),
		},
		"networks": networks,
		"services": []any{s.others(map[string]any{"type": "dns", "address": "10.0.0.2"}, 2)},
	}, 3)
}

func TestExpandKeepsTheRest(t *testing.T) {
	t.Parallel()

	v4, v6 := netip.MustParsePrefix("10.0.0.5/24"), netip.MustParsePrefix("2001:db8::5/64")
	a := netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{v4, v6}}

	for _, format := range []netdata.Format{netdata.FormatOpenStack, netdata.FormatV2} {
		for name, marshal := range map[string]func(any) ([]byte, error){"JSON": json.Marshal, "YAML": yaml.Marshal} {
			property.Check(t, string(format)+" in "+name, property.Options{Runs: runs}, prop.ForAll(func(seed uint64) (string, error) {
				user := sample(seed).userData(format)

				data, err := marshal(user)
				if err != nil {
					return "", err
				}

				if again := map[string]any{}; yaml.Unmarshal(data, &again) != nil && name == "YAML" {
					return "", nil // the library cannot read what it wrote
				}

				want := values(t, data)

				out, is, err := netdata.Expand(data, a)
				if err != nil || is != format {
					return "", fmt.Errorf("is %s: %w\n%s", is, err, data)
				}

				if twice, _, err := netdata.Expand(out, a); err != nil || !bytes.Equal(twice, out) {
					return "", fmt.Errorf("twice: %w\n%s", err, cmp.Diff(string(out), string(twice)))
				}

				expandByHand(want, format)

				return cmp.Diff(want, values(t, out)), nil
			}, gen.UInt64()))
		}
	}
}

// expandByHand puts the addresses where userData leaves room for them.
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

func visit(schema *openapi3.Schema, data []byte) error {
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		return err
	}

	return schema.VisitJSON(v)
}

// TestTheSchemaRefuses: a schema that takes everything proves nothing.
func TestTheSchemaRefuses(t *testing.T) {
	t.Parallel()

	schema := loadSchema(t)

	good, err := sample(3).network().EncodeOpenStack()
	if err != nil || visit(schema, good) != nil {
		t.Fatal(err, visit(schema, good))
	}

	for _, change := range [][2]string{
		{`"services"`, `"service"`}, {`"phy"`, `"physical"`}, {`"ethernet_mac_address"`, `"mac"`}, {`"ipv4_dhcp"`, `"dhcp"`}, {`"network_id"`, `"x"`},
	} {
		bad := strings.Replace(string(good), change[0], change[1], 1)
		if visit(schema, []byte(bad)) == nil || bad == string(good) {
			t.Errorf("%v: is taken", change)
		}
	}
}

func FuzzParse(f *testing.F) {
	for seed := range uint64(4) {
		n := sample(seed).network()
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

		for i := range n.Links { // as version 2 would call them, in its order
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
			t.Errorf("what is written is not read: %v\n%s", err, out)
		}
	})
}

// compact is JSON without blanks.
func compact(t *testing.T, data []byte) string {
	t.Helper()

	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		t.Fatal(err)
	}

	return b.String()
}
