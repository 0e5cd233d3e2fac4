// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package netdata_test

import (
	"errors"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/test/exe"
)

// newDualStackNetwork returns the network of document 002: one interface with an address, a gateway and a name
// server of each family.
func newDualStackNetwork() *netdata.Network {
	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix

	return &netdata.Network{
		Links: []netdata.Link{{
			ID: "eno101", Name: "eno101", MAC: "52:54:00:12:34:56", MTU: 1400,
			Addresses: []netip.Prefix{prefix("192.168.1.10/26"), prefix("2620:0:860:2::10/64")},
			Routes:    []netdata.Route{netdata.DefaultRoute(addr("192.168.1.1")), netdata.DefaultRoute(addr("2620:0:860:2::1"))},
		}},
		DNS: netdata.DNS{Servers: []netip.Addr{addr("8.8.8.8"), addr("2001:4860:4860::8888")}, Search: []string{"example.com"}},
	}
}

const dualOpenStack = `{"links":[{"id":"eno101","name":"eno101","type":"phy","ethernet_mac_address":"52:54:00:12:34:56","mtu":1400}],` +
	`"networks":[{"id":"network0","type":"ipv4","link":"eno101","network_id":"network0","ip_address":"192.168.1.10",` +
	`"netmask":"255.255.255.192","routes":[{"network":"0.0.0.0","netmask":"0.0.0.0","gateway":"192.168.1.1"}],"dns_search":["example.com"]},` +
	`{"id":"network1","type":"ipv6","link":"eno101","network_id":"network1","ip_address":"2620:0:860:2::10",` +
	`"netmask":"ffff:ffff:ffff:ffff::","routes":[{"network":"::","netmask":"::","gateway":"2620:0:860:2::1"}],"dns_search":["example.com"]}],` +
	`"services":[{"type":"dns","address":"8.8.8.8"},{"type":"dns","address":"2001:4860:4860::8888"}]}`

const dualV2 = `version: 2
ethernets:
  eno101:
    match:
      macaddress: "52:54:00:12:34:56"
    set-name: eno101
    mtu: 1400
    addresses:
      - 192.168.1.10/26
      - 2620:0:860:2::10/64
    routes:
      - to: 0.0.0.0/0
        via: 192.168.1.1
      - to: ::/0
        via: 2620:0:860:2::1
    nameservers:
      search:
        - example.com
      addresses:
        - 8.8.8.8
        - 2001:4860:4860::8888
`

func TestGolden(t *testing.T) {
	t.Parallel()

	for want, write := range map[string]func() ([]byte, error){dualOpenStack: newDualStackNetwork().EncodeOpenStack, dualV2: newDualStackNetwork().EncodeV2} {
		got, err := write()
		if err != nil {
			t.Fatal(err)
		}

		text := string(got)
		if strings.HasPrefix(text, "{\n  \"links\": [\n") { // indented for people
			text = compact(t, got)
		}

		if diff := cmp.Diff(want, text); diff != "" {
			t.Error(diff)
		}
	}
}

// TestTemplate: the network data of a machine template has no addresses and no MAC address. When it is
// expanded, the result is the same as for complete data.
func TestTemplate(t *testing.T) {
	t.Parallel()

	machine, template := newDualStackNetwork(), newDualStackNetwork()
	template.Links[0].MAC, template.Links[0].Addresses = "", nil

	data, err := template.EncodeOpenStack()
	if err != nil {
		t.Fatal(err)
	}

	out, _, err := netdata.Expand(data, netdata.Allocation{
		Interface: "eno101", MAC: "52-54-00-12-34-56", Addresses: machine.Links[0].Addresses,
	})
	if err != nil {
		t.Fatal(err)
	}

	got, _, err := netdata.Parse(out)
	if diff := cmp.Diff(machine, got, newCompareOptions()); diff != "" || err != nil {
		t.Errorf("%v\n%s\n%s", err, diff, out)
	}

	if err := validate(loadSchema(t), out); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// document is the example of document 002: its link has no name and no MAC address, and there are commas
// before closing brackets.
const document = `{
  "links": [
    {
      "id": "eno101",
      "type": "phy",
    }
  ],
  "networks": [
    {
      "id": "network0",
      "type": "ipv4",
      "link": "eno101",
      "routes": [
        {
          "network": "0.0.0.0",
          "netmask": "0.0.0.0",
          "gateway": "192.168.1.1"
        }
      ],
      "network_id": "network0"
    }
  ],
  "services": [
    {
      "type": "dns",
      "address": "8.8.8.8"
    },
  ]
}`

func TestExpand(t *testing.T) {
	t.Parallel()

	v4, v6 := netip.MustParsePrefix("192.168.1.10/24"), netip.MustParsePrefix("fd41:1234::932/64")

	for name, tc := range map[string]struct {
		data string
		a    netdata.Allocation
		want string
	}{
		"the document's": {
			data: document, a: netdata.Allocation{Interface: "eno101", MAC: "52:54:00:12:34:56", Addresses: []netip.Prefix{v4}},
			want: `{"links":[{"id":"eno101","type":"phy","name":"eno101","ethernet_mac_address":"52:54:00:12:34:56"}],` +
				`"networks":[{"id":"network0","type":"ipv4","link":"eno101","routes":[{"network":"0.0.0.0","netmask":"0.0.0.0",` +
				`"gateway":"192.168.1.1"}],"network_id":"network0","netmask":"255.255.255.0","ip_address":"192.168.1.10"}],` +
				`"services":[{"type":"dns","address":"8.8.8.8"}]}`,
		},
		"addresses of both families": {
			data: `{"links":[{"id":"eno101","type":"phy"}]}`, a: netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{v4, v6}},
			want: `{"links":[{"id":"eno101","type":"phy","name":"eno101"}],"networks":[{"id":"network0","type":"ipv4","link":"eno101",` +
				`"network_id":"network0","ip_address":"192.168.1.10","netmask":"255.255.255.0"},{"id":"network1","type":"ipv6","link":"eno101",` +
				`"network_id":"network1","ip_address":"fd41:1234::932","netmask":"ffff:ffff:ffff:ffff::"}],"services":[]}`,
		},
		"the second of two links": {
			data: `{"links":[{"id":"eno100","type":"phy"},{"id":"eno101","type":"phy"}]}`, a: netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{v4}},
			want: `{"links":[{"id":"eno100","type":"phy"},{"id":"eno101","type":"phy","name":"eno101"}],"networks":[{"id":"network0","type":"ipv4",` +
				`"link":"eno101","network_id":"network0","ip_address":"192.168.1.10","netmask":"255.255.255.0"}],"services":[]}`,
		},
		"YAML, by name, numbers and unknown keys stay": {
			data: "links:\n- {id: tap1, name: eno101, type: ovs, mtu: 0x5dc, vif_id: 'x'}\nlater: [1.50, ~, yes, 2001-01-01]\n",
			a:    netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{v6}},
			want: `{"links":[{"id":"tap1","name":"eno101","type":"ovs","mtu":1500,"vif_id":"x"}],"later":[1.50,null,"yes","2001-01-01"],` +
				`"networks":[{"id":"network0","type":"ipv6","link":"tap1","network_id":"network0","ip_address":"fd41:1234::932",` +
				`"netmask":"ffff:ffff:ffff:ffff::"}],"services":[]}`,
		},
		"version 2, comments stay": {
			data: "# ours\nversion: 2\nethernets:\n  # the only one\n  eno101: {dhcp6: true}\n  b: null\n",
			a:    netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{v4, v6}},
			want: "# ours\nversion: 2\nethernets:\n  # the only one\n  eno101: {dhcp6: true, addresses: [192.168.1.10/24, 'fd41:1234::932/64']}\n  b: null\n",
		},
		"version 2 below network, by set-name": {
			data: "network:\n  version: 2\n  ethernets:\n    a:\n      set-name: eno101\n      addresses:\n        - 10.0.0.1/8\n    eno101:\n      set-name: b\n",
			a:    netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{v4}},
			want: "network:\n  version: 2\n  ethernets:\n    a:\n      set-name: eno101\n      addresses:\n        - 10.0.0.1/8\n        - 192.168.1.10/24\n    eno101:\n      set-name: b\n",
		},
		"version 2, by pattern, as JSON": {
			data: `{"version": 2, "ethernets": {"primary": {"match": {"name": "e*"}}}}`, a: netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{v4}},
			want: `{"version":2,"ethernets":{"primary":{"match":{"name":"e*"},"addresses":["192.168.1.10/24"]}}}`,
		},
		"version 2, the only one, with a pattern": {
			data: "version: 2\nethernets:\n  a-long-name-of-netplan:\n    match: {name: e*}\n", a: netdata.Allocation{Addresses: []netip.Prefix{v4, v6}},
			want: "version: 2\nethernets:\n  a-long-name-of-netplan:\n    match: {name: e*}\n    addresses:\n      - 192.168.1.10/24\n      - fd41:1234::932/64\n",
		},
		"the only link": {
			data: `{"links":[{"id":"tap1","type":"phy","name":"eth0"}]}`, a: netdata.Allocation{Addresses: []netip.Prefix{v4}},
			want: `{"links":[{"id":"tap1","type":"phy","name":"eth0"}],"networks":[{"id":"network0","type":"ipv4","link":"tap1",` +
				`"network_id":"network0","ip_address":"192.168.1.10","netmask":"255.255.255.0"}],"services":[]}`,
		},
		"the user has put an address in": {
			data: "version: 2\nethernets: {a: {addresses: [192.168.1.10/16]}, b: {}}\n", a: netdata.Allocation{Addresses: []netip.Prefix{v4, v6}},
			want: "version: 2\nethernets: {a: {addresses: [192.168.1.10/16]}, b: {}}\n",
		},
		"version 2, a bridge": {
			data: "version: 2\nbridges:\n  br0:\n    interfaces: [a]\n", a: netdata.Allocation{Interface: "br0", Addresses: []netip.Prefix{v4}},
			want: "version: 2\nbridges:\n  br0:\n    interfaces: [a]\n    addresses:\n      - 192.168.1.10/24\n",
		},
		"version 2, a name alone, anchors": {
			data: "version: 2\nethernets:\n  eno101:\n  b: &b {mtu: 9000}\n  c: *b\n", a: netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{v4}},
			want: "version: 2\nethernets:\n  eno101:\n    addresses:\n      - 192.168.1.10/24\n  b: {mtu: 9000}\n  c: {mtu: 9000}\n",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			out, _, err := netdata.Expand([]byte(tc.data), tc.a)
			if err != nil {
				t.Fatal(err)
			}

			got := string(out)
			if strings.HasPrefix(tc.want, "{") {
				got = compact(t, out)
			}

			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDocumentExample: the complete example of document 002 is valid, and the product reads and writes the same content.
func TestDocumentExample(t *testing.T) {
	t.Parallel()

	example, err := os.ReadFile("testdata/document-network-data.json")
	if err != nil {
		t.Fatal(err)
	}

	network, _, err := netdata.Parse(example)
	if err != nil {
		t.Fatal(err)
	}

	addr := netip.MustParseAddr
	want := &netdata.Network{
		Links: []netdata.Link{{
			ID: "eno101", MAC: "52:54:00:12:34:56", Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.1.100/24")},
			Routes: []netdata.Route{netdata.DefaultRoute(addr("192.168.1.1"))},
		}},
		DNS: netdata.DNS{Servers: []netip.Addr{addr("8.8.8.8"), addr("8.8.4.4")}},
	}
	if diff := cmp.Diff(want, network, newCompareOptions()); diff != "" {
		t.Errorf("content (-want +got):\n%s", diff)
	}

	written, err := network.EncodeOpenStack()
	if err != nil {
		t.Fatal(err)
	}

	again, _, err := netdata.Parse(written)
	if diff := cmp.Diff(want, again, newCompareOptions()); diff != "" || err != nil {
		t.Errorf("%v: written (-want +got):\n%s\n%s", err, diff, written)
	}

	if err := validate(loadSchema(t), written); err != nil {
		t.Error(err)
	}
}

func TestExpandRejects(t *testing.T) {
	t.Parallel()

	prefix := netip.MustParsePrefix
	fits := netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{prefix("10.0.0.5/24")}}
	alone := netdata.Allocation{Addresses: fits.Addresses}
	data := func(link, network string) string {
		return `{"links":[{"id":"eno101","type":"phy"` + link + `}],"networks":[{"id":"n","type":"ipv4","link":"eno101"` + network + `}]}`
	}

	for name, tc := range map[string]struct {
		data string
		a    netdata.Allocation
		want string
	}{
		"no interface":            {data: `{"links":[{"id":"a","name":"eth0"}],"networks":[]}`, a: fits, want: `links: no such interface: "eno101", it has eth0, a`},
		"no interface, v2":        {data: "version: 2\nethernets: {eth0: {}}", a: fits, want: `no such interface: "eno101", it has eth0`},
		"another MAC":             {data: data(`,"ethernet_mac_address":"52:54:00:00:00:01"`, ""), a: netdata.Allocation{Interface: "eno101", MAC: "52:54:00:00:00:02"}, want: "links[0].ethernet_mac_address: 52:54:00:00:00:01: the machine's MAC address is"},
		"another MAC, v2":         {data: "version: 2\nethernets: {eno101: {match: {macaddress: '52:54:00:00:00:01'}}}", a: netdata.Allocation{Interface: "eno101", MAC: "52:54:00:00:00:02"}, want: "match.macaddress"},
		"another netmask":         {data: data("", `,"netmask":"255.255.0.0"`), a: fits, want: "networks[0].netmask: the prefix length is 16 here and 24 for the pool"},
		"the address, elsewhere":  {data: "version: 2\nethernets: {eno101: {addresses: [10.0.0.5/8]}}", a: fits, want: "addresses[0]: the prefix length is 8 here"},
		"neither JSON nor YAML":   {data: "links: [", a: fits, want: "is neither JSON nor YAML: line 1"},
		"empty":                   {data: "", a: fits, want: "is empty"},
		"another format":          {data: "hello: world", a: fits, want: "is neither OpenStack's"},
		"version 1":               {data: "version: 1\nconfig: []", a: fits, want: `version: "1": only version 2 is supported`},
		"a list":                  {data: "- a", a: fits, want: "must be a mapping"},
		"a double key":            {data: "version: 2\nversion: 2", a: fits, want: "duplicate key version, first used in line 1"},
		"two documents":           {data: "version: 2\n---\nversion: 2", a: fits, want: "second YAML document"},
		"invalid networks":        {data: `{"links":[{"id":"eno101"}],"networks":{}}`, a: fits, want: "networks: must be a list"},
		"bad interface":           {data: `{"links":[{"id":"no name"}]}`, a: netdata.Allocation{Interface: "no name"}, want: `links[0]: interface name "no name"`},
		"no name, no interface":   {data: "version: 2\nethernets: {}", a: alone, want: "no such interface: it has none"},
		"no name, two interfaces": {data: `{"links":[{"id":"a"},{"id":"b","name":"eth1"}]}`, a: alone, want: "several interfaces (a, eth1): name the one"},
		"no name, version 2":      {data: "version: 2\nethernets: {a: {set-name: eth0}}\nvlans: {b: {id: 1, link: a}}", a: alone, want: "several interfaces (eth0, b)"},
		"a link without a name":   {data: `{"links":[{"type":"phy"}]}`, a: alone, want: "links[0].id: is missing"},
		"addresses, version 1":    {data: "version: 1\nconfig: [{type: physical, name: a}]", a: alone, want: "only version 2 is supported"},
		"bad address":             {data: document, a: netdata.Allocation{Interface: "eno101", Addresses: []netip.Prefix{prefix("0.0.0.0/0")}}, want: "needs the prefix length"},
		"an alias of itself":      {data: "version: 2\na: &a [*a]", a: fits, want: "levels deep"},
		"no number of JSON":       {data: "links: [{id: eno101}]\na: .inf", a: fits, want: "has no form in JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			out, _, err := netdata.Expand([]byte(tc.data), tc.a)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q\n%s", err, tc.want, out)
			}

			if strings.HasPrefix(name, "no interface") && !errors.Is(err, netdata.ErrNoInterface) {
				t.Error("is not ErrNoInterface")
			}
		})
	}
}

func TestParseRejects(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct{ data, want string }{
		"no link":             {`{"links":[],"networks":[{"id":"n","type":"ipv4","link":"x"}]}`, `networks[0].link: "x": is not the id of a link`},
		"a link twice":        {`{"links":[{"id":"a","type":"phy"},{"id":"a","type":"phy"}]}`, `links[1]: the id "a" occurs twice`},
		"type of link":        {`{"links":[{"id":"a","type":"wlan"}]}`, `links[0].type: "wlan": must be bond, vlan`},
		"type of network":     {strings.Replace(dualOpenStack, `"ipv4"`, `"ipx"`, 1), `networks[0].type: "ipx": must be one of`},
		"MAC":                 {strings.Replace(dualOpenStack, "52:54:00:12:34:56", "52:54", 1), "links[0].ethernet_mac_address"},
		"netmask":             {strings.Replace(dualOpenStack, "255.255.255.192", "255.0.255.0", 1), "networks[0]: 192.168.1.10: \"255.0.255.0\" is not its netmask"},
		"family":              {strings.Replace(dualOpenStack, "192.168.1.10", "fd00::1", 1), "is not an address of type ipv4"},
		"name server":         {strings.Replace(dualOpenStack, `"8.8.8.8"`, `"dns.example"`, 1), "services[0].address"},
		"MTU":                 {strings.Replace(dualOpenStack, "1400", "70000", 1), "links[0].mtu: \"70000\": must be a whole number"},
		"VLAN":                {`{"links":[{"id":"a","type":"vlan","vlan_id":9999,"vlan_link":"b"}]}`, "links[0].vlan_id"},
		"a VLAN without link": {`{"links":[{"id":"a","type":"vlan","vlan_id":9,"vlan_link":"b"}]}`, `uses link "b", which does not exist`},
		"a VLAN on itself":    {`{"links":[{"id":"a","type":"vlan","vlan_id":9,"vlan_link":"a"}]}`, `link "a": uses itself`},
		"bond mode":           {`{"links":[{"id":"a","type":"bond","bond_mode":"fast","bond_links":[]}]}`, `bond mode "fast"`},
		"v2 address":          {strings.Replace(dualV2, "10/26", "10", 1), "ethernets.eno101.addresses[0]: \"192.168.1.10\": must be an address with its prefix length"},
		"v2 route":            {strings.Replace(dualV2, "via: 192.168.1.1", "via: fd00::1", 1), "routes[0]"},
		"v2 gateway4":         {"version: 2\nethernets: {a: {gateway4: 'fd00::1'}}", "gateway4: fd00::1: is not of the right address family"},
		"v2 flag":             {"version: 2\nethernets: {a: {dhcp4: maybe}}", "dhcp4: must be true or false"},
		"v2 bridge":           {"version: 2\nbridges: {a: {}}", "bridges: is not supported"},
		"v2 long name":        {"version: 2\nethernets: {a: {set-name: sixteencharacter}}", "interface name"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if _, _, err := netdata.Parse([]byte(tc.data)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestParseAccepts has input that the formats allow and that this package does not write.
func TestParseAccepts(t *testing.T) {
	t.Parallel()

	addr, prefix := netip.MustParseAddr, netip.MustParsePrefix

	for name, tc := range map[string]struct {
		data string
		want *netdata.Network
	}{
		"nova's": {`{"links":[{"ethernet_mac_address":"FA:16:3E:60:32:83","id":"tapf7","mtu":null,"type":"ovs","vif_id":"f7"}],
			"networks":[{"id":"network0","link":"tapf7","network_id":"e","type":"ipv6","ip_address":"2001:db8::5/64","routes":[],"services":[{"type":"dns","address":"10.0.0.2"}]},
			{"id":"network1","link":"tapf7","network_id":"e","type":"ipv6_dhcpv6-stateful"}],"services":[{"type":"ntp","address":"x"}]}`,
			&netdata.Network{
				Links: []netdata.Link{{ID: "tapf7", MAC: "fa:16:3e:60:32:83", DHCP6: true, Addresses: []netip.Prefix{prefix("2001:db8::5/64")}}},
				DNS:   netdata.DNS{Servers: []netip.Addr{addr("10.0.0.2")}},
			}},
		"netplan's": {"network:\n  version: 2\n  renderer: networkd\n  ethernets:\n    a:\n      gateway4: 10.0.0.1\n      addresses: [10.0.0.5/24: {label: x}]\n      routes: [{to: default, via: 'fd00::1', metric: 5}, {to: 10.9.9.9, via: 10.0.0.2}]\n",
			&netdata.Network{Links: []netdata.Link{{ID: "a", Name: "a", Addresses: []netip.Prefix{prefix("10.0.0.5/24")},
				Routes: []netdata.Route{netdata.DefaultRoute(addr("fd00::1")), {To: prefix("10.9.9.9/32"), Via: addr("10.0.0.2")}, netdata.DefaultRoute(addr("10.0.0.1"))}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, _, err := netdata.Parse([]byte(tc.data))
			if diff := cmp.Diff(tc.want, got, newCompareOptions()); diff != "" || err != nil {
				t.Error(err, diff)
			}
		})
	}
}

// newNetworkWithAllLinks returns a network with each kind of link.
func newNetworkWithAllLinks() *netdata.Network {
	n := newDualStackNetwork()
	prefix := netip.MustParsePrefix
	n.Links = append(n.Links,
		netdata.Link{ID: "port1", Name: "port1", MAC: "52:54:00:00:00:01"},
		netdata.Link{ID: "port2", Name: "port2", MAC: "52:54:00:00:00:02"},
		netdata.Link{ID: "bond0", Name: "bond0", MAC: "52:54:00:00:00:03", DHCP4: true,
			Bond: &netdata.Bond{Mode: "802.3ad", Links: []string{"port1", "port2"}}},
		netdata.Link{ID: "vlan7", Name: "vlan7", MAC: "52:54:00:00:00:04", VLAN: &netdata.VLAN{ID: 7, Link: "bond0"},
			Addresses: []netip.Prefix{prefix("10.7.0.5/32")}, Routes: []netdata.Route{netdata.DefaultRoute(netip.MustParseAddr("10.7.0.1"))}},
	)

	return n
}

// readNetworkdFiles returns the content of the files for systemd-networkd below a root.
func readNetworkdFiles(t *testing.T, root string) string {
	t.Helper()

	var all strings.Builder

	for _, dir := range []string{"run", "etc"} {
		files, err := filepath.Glob(filepath.Join(root, dir, "systemd", "network", "*"))
		if err != nil {
			t.Fatal(err)
		}

		for _, f := range files {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}

			all.Write(data)
		}
	}

	return all.String()
}

// requireLines reports lines that are missing in a text.
func requireLines(t *testing.T, text string, lines ...string) {
	t.Helper()

	for _, l := range lines {
		if !strings.Contains(text, l+"\n") {
			t.Errorf("%q is missing in:\n%s", l, text)
		}
	}
}

// TestNetplan: netplan interprets the output of V2 correctly.
func TestNetplan(t *testing.T) {
	t.Parallel()

	data, err := newNetworkWithAllLinks().EncodeV2()
	if err != nil {
		t.Fatal(err)
	}

	made := strings.Join(slices.Sorted(maps.Values(exe.RunNetplan(t, data))), "")

	requireLines(t, made, "MACAddress=52:54:00:12:34:56", "Address=192.168.1.10/26", "Address=2620:0:860:2::10/64", "Gateway=192.168.1.1",
		"Gateway=2620:0:860:2::1", "DNS=8.8.8.8", "DNS=2001:4860:4860::8888", "Domains=example.com", "MTUBytes=1400", "Mode=802.3ad", "Bond=bond0",
		"DHCP=ipv4", "Id=7", "VLAN=vlan7", "Address=10.7.0.5/32", "GatewayOnLink=true")
}

// TestCloudInit: cloud-init interprets both formats correctly.
func TestCloudInit(t *testing.T) {
	t.Parallel()

	program := exe.FindProgram(t, "cloud-init", "cloud-init")

	for kind, write := range map[string]func() ([]byte, error){"network_data.json": newNetworkWithAllLinks().EncodeOpenStack, "yaml": newNetworkWithAllLinks().EncodeV2} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()

			data, err := write()
			if err != nil {
				t.Fatal(err)
			}

			dir := t.TempDir()
			file := filepath.Join(dir, "in")

			if err := os.WriteFile(file, data, 0o600); err != nil {
				t.Fatal(err)
			}

			args := []string{"devel", "net-convert", "--network-data", file, "--kind", kind, "--directory", dir, "--distro", "debian", "--output-kind", "networkd"}
			for name, mac := range map[string]string{"eno101": "52:54:00:12:34:56", "port1": "52:54:00:00:00:01", "port2": "52:54:00:00:00:02"} {
				args = append(args, "--mac", name+","+mac)
			}

			if output, err := exec.Command(program, args...).CombinedOutput(); err != nil {
				t.Fatalf("cloud-init: %v\n%s\n%s", err, output, data)
			}

			requireLines(t, readNetworkdFiles(t, dir), "MACAddress=52:54:00:12:34:56", "Address=192.168.1.10/26", "Address=2620:0:860:2::10/64", "Gateway=192.168.1.1",
				"Gateway=2620:0:860:2::1", "Address=10.7.0.5/32")
		})
	}
}
