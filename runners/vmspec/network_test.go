// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vmspec_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/runners/vmspec"
	"github.com/hyperfleet/hyperfleet/test/exe"
)

// newAddressPool returns an address pool with both families, and one gateway for each.
func newAddressPool() *v1alpha1.AddressPool {
	return &v1alpha1.AddressPool{
		Addresses:      []v1alpha1.AddressRange{"10.9.0.10-10.9.0.20", "fd00:9::10-fd00:9::20"},
		PrefixLengthV4: 25, PrefixLengthV6: 64,
		Gateway:     []v1alpha1.IPAddress{"10.9.0.1", "fe80::1"},
		Nameservers: []v1alpha1.IPAddress{"10.9.0.2", "fd00:9::2"},
	}
}

// newAddressedInput returns the input for a claim's machine with the network and the network data of a
// template.
func newAddressedInput(network v1alpha1.MachineNetwork, data string, addresses ...string) vmspec.Input {
	out := newInput(newTemplate(func(s *v1alpha1.HypervisorMachineTemplateSpec) {
		s.Network = &network
		if data != "" {
			s.CloudInit = &v1alpha1.CloudInit{NetworkData: data}
		}
	}), vmspec.Settings{})
	out.Claim.Status.NetworkInfo = &v1alpha1.NetworkInfo{Addresses: addresses}

	return out
}

func newPoolNetwork(mode, device string) v1alpha1.MachineNetwork {
	return v1alpha1.MachineNetwork{Mode: mode, Interface: device, Static: &v1alpha1.StaticNetwork{Pool: newAddressPool()}}
}

const (
	address4, address6 = "10.9.0.10/25", "fd00:9::10/64"

	twoDevices = "# ours\nversion: 2\nethernets:\n  ens18: {dhcp4: true}\n  ens19:\n    mtu: 9000\n" +
		"    routes: [{to: 10.0.0.0/8, via: 10.9.0.1, metric: 7}]\n"
	bridged  = "version: 2\nethernets: {ens18: {}}\nbridges:\n  br0:\n    interfaces: [ens18]\n    parameters: {stp: false}\n"
	variable = "network:\n  version: 2\n  ethernets:\n    a:\n      match: {name: e*}\n      addresses: {{ .Addresses }}\n" +
		"      nameservers: {addresses: {{ .DNSServers }}}\n"
	version1 = "version: 1\nconfig:\n- type: physical\n  name: eth0\n  subnets:\n  - {type: static, address: {{ .StaticIP }}/{{ .NetmaskBits }}}\n"
	asJSON   = `{"version": 2, "ethernets": {"ens18": {"mtu": 1400}}}`
	// openStack is the network data of a config drive, with the netmask of the pool's addresses.
	openStack = `{"links": [{"id": "tap1", "type": "phy", "name": "ens18", "mtu": 1400, "vif_id": "x"}],
		"networks": [{"id": "n0", "type": "ipv4", "link": "tap1", "netmask": "255.255.255.128", "network_id": "n0",
			"routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "10.9.0.1"}]}],
		"services": [{"type": "dns", "address": "10.9.0.2"}]}`
)

// The network data of a claim's machine holds its addresses, whether the template has its own network data
// or not. netplan and cloud-init apply them as intended.
func TestNetworkDataOfMachines(t *testing.T) {
	t.Parallel()

	fixed := func(ip, mask, gateway string) v1alpha1.MachineNetwork {
		return v1alpha1.MachineNetwork{Mode: "static", Static: &v1alpha1.StaticNetwork{IPAddress: ip, Netmask: mask, Gateway: gateway}}
	}
	no := false

	searching := newAddressedInput(v1alpha1.MachineNetwork{}, "")
	searching.Names.SearchDomains = []string{"a.example", "b.example"}

	cases := map[string]struct {
		in   vmspec.Input
		want []string
		// kept is text of the user that must be unchanged.
		kept []string
	}{
		"dhcp": {in: newAddressedInput(v1alpha1.MachineNetwork{}, ""), want: []string{"Name=e*", "DHCP=ipv4", "ClientIdentifier=mac"}},
		"dhcp with options": {
			in: newAddressedInput(v1alpha1.MachineNetwork{Interface: "ens18", DHCP: &v1alpha1.DHCP{
				SendHostname: &no, UseDNS: &no, UseRoutes: &no, ClientIdentifier: "hostname",
			}}, ""), want: []string{"Name=ens18", "SendHostname=false", "UseDNS=false", "UseRoutes=false"},
		},
		"search domains": {in: searching, want: []string{"DHCP=ipv4", "Domains=a.example b.example"}},
		"dhcp is off":    {in: newAddressedInput(v1alpha1.MachineNetwork{DHCP: &v1alpha1.DHCP{Enabled: &no}}, ""), want: []string{"Name=e*"}},
		"one IPv4 address": {
			in:   newAddressedInput(fixed("192.0.2.5", "255.255.255.0", "192.0.2.1"), ""),
			want: []string{"Address=192.0.2.5/24", "Gateway=192.0.2.1"},
		},
		"one IPv6 address": {
			in:   newAddressedInput(fixed("2001:db8::5", "64", "fe80::1"), ""),
			want: []string{"Address=2001:db8::5/64", "Gateway=fe80::1"},
		},
		"IPv4 of a pool": {
			in:   newAddressedInput(newPoolNetwork("static", ""), "", address4),
			want: []string{"Name=e*", "Address=10.9.0.10/25", "Gateway=10.9.0.1", "DNS=10.9.0.2"},
		},
		"IPv6 of a pool": {
			in:   newAddressedInput(newPoolNetwork("static", "ens1*"), "", address6),
			want: []string{"Name=ens1*", "Address=fd00:9::10/64", "Gateway=fe80::1", "DNS=fd00:9::2"},
		},
		"both of a pool": {
			in:   newAddressedInput(newPoolNetwork("static", "ens18"), "", address4, address6),
			want: []string{"Name=ens18", "Address=10.9.0.10/25", "Address=fd00:9::10/64", "Gateway=10.9.0.1", "Gateway=fe80::1"},
		},
		"the user's, at one of two interfaces": {
			in:   newAddressedInput(newPoolNetwork("cloud-init", "ens19"), twoDevices, address4, address6),
			want: []string{"Address=10.9.0.10/25", "Address=fd00:9::10/64", "Metric=7", "DHCP=ipv4"},
			kept: []string{"# ours", "mtu: 9000", "metric: 7"},
		},
		"the user's, at a bridge": {
			in:   newAddressedInput(newPoolNetwork("static", "br0"), bridged, address4),
			want: []string{"Address=10.9.0.10/25", "Bridge=br0"}, kept: []string{"stp: false"},
		},
		"the user's, at the only interface, as JSON": {
			in: newAddressedInput(newPoolNetwork("cloud-init", ""), asJSON, address4), want: []string{"Address=10.9.0.10/25", "MTUBytes=1400"},
		},
		"the user's, with variables": {
			in:   newAddressedInput(newPoolNetwork("cloud-init", ""), variable, address4, address6),
			want: []string{"Name=e*", "Address=10.9.0.10/25", "Address=fd00:9::10/64", "DNS=10.9.0.2"},
		},
		"OpenStack's": {
			in:   newAddressedInput(newPoolNetwork("cloud-init", ""), openStack, address4),
			want: []string{"Name=ens18", "Address=10.9.0.10/25", "Gateway=10.9.0.1", "DNS=10.9.0.2", "MTUBytes=1400"},
		},
	}

	var configs [][]byte

	for name, tc := range cases {
		seed, err := vmspec.RenderSeed(tc.in)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}

		configs = append(configs, seed.NetworkConfig)

		t.Run(name, func(t *testing.T) {
			t.Parallel()

			for _, kept := range tc.kept {
				if !strings.Contains(string(seed.NetworkConfig), kept) {
					t.Errorf("lacks the user's %q:\n%s", kept, seed.NetworkConfig)
				}
			}

			made := strings.Join(slices.Sorted(maps.Values(exe.RunNetplan(t, seed.NetworkConfig))), "")
			for _, want := range tc.want {
				if !strings.Contains(made, want+"\n") {
					t.Errorf("networkd configuration lacks %q:\n%s\nfrom\n%s", want, made, seed.NetworkConfig)
				}
			}

			checkUserData(t, seed.UserData)

			if err := vmspec.DryRender(tc.in.Template, vmspec.Settings{}); err != nil {
				t.Errorf("the template's check: %v", err)
			}
		})
	}

	t.Run("by cloud-init", func(t *testing.T) {
		t.Parallel()
		convertWithCloudInit(t, configs...)
	})
}

// The rendered network data can be parsed again. Written as the data of a config drive, it is valid
// according to OpenStack's schema.
func TestNetworkDataAsOpenStack(t *testing.T) {
	t.Parallel()

	doc, err := openapi3.NewLoader().LoadFromFile("../../cloudinit/netdata/testdata/network_data.schema.json")
	if err != nil {
		t.Fatal(err)
	}

	for name, in := range map[string]vmspec.Input{
		"IPv4":        newAddressedInput(newPoolNetwork("static", ""), "", address4),
		"IPv6":        newAddressedInput(newPoolNetwork("static", ""), "", address6),
		"both":        newAddressedInput(newPoolNetwork("static", "ens18"), "", address4, address6),
		"the user's":  newAddressedInput(newPoolNetwork("cloud-init", "ens19"), twoDevices, address4, address6),
		"OpenStack's": newAddressedInput(newPoolNetwork("cloud-init", ""), openStack, address4),
		"variables":   newAddressedInput(newPoolNetwork("cloud-init", ""), variable, address4, address6),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			seed, err := vmspec.RenderSeed(in)
			if err != nil {
				t.Fatal(err)
			}

			network, _, err := netdata.Parse(seed.NetworkConfig)
			if err != nil {
				t.Fatalf("%v\n%s", err, seed.NetworkConfig)
			}

			for i := range network.Links { // a config drive has this field, but the cloud-init ISO of a machine does not
				network.Links[i].MAC = "52:54:00:00:00:0" + string(rune('1'+i))
				network.Links[i].Name = strings.ReplaceAll(network.Links[i].Name, "*", "no1")
			}

			data, err := network.EncodeOpenStack()
			if err != nil {
				t.Fatal(err)
			}

			var value any
			if err := errors.Join(json.Unmarshal(data, &value), doc.Components.Schemas["NetworkData"].Value.VisitJSON(value)); err != nil {
				t.Errorf("%v\n%s", err, data)
			}

			for _, address := range in.Claim.Status.NetworkInfo.Addresses {
				host, _, _ := strings.Cut(address, "/")
				if !strings.Contains(string(data), `"ip_address": "`+host+`"`) {
					t.Errorf("lacks %s:\n%s", host, data)
				}
			}
		})
	}
}

// Network data that cannot hold the addresses is refused when the template is checked. The error names the
// field and the fix.
func TestInvalidNetworkData(t *testing.T) {
	t.Parallel()

	static := newPoolNetwork("cloud-init", "ens18")
	alone := newPoolNetwork("cloud-init", "")

	for name, tc := range map[string]struct {
		network v1alpha1.MachineNetwork
		data    string
		want    []string
	}{
		"neither JSON nor YAML":                 {static, "links: [", []string{"invalid YAML", "line 1"}},
		"no mapping":                            {static, "- a", []string{"must be a YAML mapping"}},
		"nothing":                               {static, " ", []string{"is empty"}},
		"nothing but a comment":                 {static, "# later\n", []string{"version: 1 or version: 2"}},
		"no network data":                       {static, "hello: world", []string{"version: 1 or version: 2", "network_data.json"}},
		"without the interface":                 {newPoolNetwork("cloud-init", "ens20"), twoDevices, []string{`no such interface: "ens20"`, "ens18, ens19", "network.interface"}},
		"OpenStack, another link":               {newPoolNetwork("cloud-init", "eth9"), openStack, []string{`no such interface: "eth9"`, "ens18"}},
		"several interfaces, and none is named": {alone, twoDevices, []string{"several interfaces (ens18, ens19)", "set network.interface", "{{ .Addresses }}"}},
		"no interface at all":                   {alone, "version: 2\n", []string{"it has none"}},
		"version 1 with no address":             {alone, strings.ReplaceAll(version1, "{{ .StaticIP }}", "10.1.1.1"), []string{"version 1", "{{ .StaticIP }}"}},
		"another netmask":                       {alone, strings.Replace(openStack, "255.255.255.128", "255.255.0.0", 1), []string{"prefix length is 16 here and 25"}},
		"bad link":                              {alone, strings.Replace(openStack, `"id": "n0"`, `"id": "n0", "ip_address": "10.9.0.300"`, 1), []string{"ip_address"}},
		"a variable that is none":               {alone, "version: 2\nethernets: {a: {addresses: {{ .Adresses }}}}", []string{"line 2", ".Adresses"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newAddressedInput(tc.network, tc.data, address4)
			_, made := vmspec.RenderSeed(in)

			for _, err := range []error{vmspec.DryRender(in.Template, vmspec.Settings{}), made} {
				if errclass.ReasonOf(err, "") != vmspec.ReasonNetworkDataInvalid {
					t.Fatalf("error %v", err)
				}

				for _, want := range append(tc.want, "cloudInit.networkData") {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("error lacks %q: %v", want, err)
					}
				}
			}
		})
	}
}

// Network data of version 1 is accepted if the user has put the addresses into it.
func TestVersion1ByVariables(t *testing.T) {
	t.Parallel()

	in := newAddressedInput(newPoolNetwork("cloud-init", ""), version1, address4)

	seed, err := vmspec.RenderSeed(in)
	if err != nil || !strings.Contains(string(seed.NetworkConfig), "address: 10.9.0.10/25") {
		t.Errorf("%v\n%s", err, seed.NetworkConfig)
	}

	convertWithCloudInit(t, seed.NetworkConfig)
}

// The check of a template uses the prefix lengths that the pool's addresses will have.
func TestTemplateCheckUsesPrefixLengths(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct {
		pool v1alpha1.AddressPool
		mask string
	}{
		"given":              {v1alpha1.AddressPool{Addresses: []v1alpha1.AddressRange{"10.9.0.10-10.9.0.20"}, PrefixLengthV4: 20}, "255.255.240.0"},
		"of a network":       {v1alpha1.AddressPool{Addresses: []v1alpha1.AddressRange{"10.9.0.9/32", "10.9.0.0/22"}}, "255.255.252.0"},
		"with gateway":       {v1alpha1.AddressPool{Addresses: []v1alpha1.AddressRange{"10.9.0.10-10.9.0.20"}, Gateway: []v1alpha1.IPAddress{"10.9.0.1"}}, "255.255.255.224"},
		"range and v6":       {v1alpha1.AddressPool{Addresses: []v1alpha1.AddressRange{"fd00::/64", "10.9.0.0-10.9.1.255"}}, "255.255.254.0"},
		"one single address": {v1alpha1.AddressPool{Addresses: []v1alpha1.AddressRange{"10.9.0.9/32"}}, "255.255.255.255"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			network := v1alpha1.MachineNetwork{Mode: "cloud-init", Static: &v1alpha1.StaticNetwork{Pool: &tc.pool}}
			for mask, fits := range map[string]bool{tc.mask: true, "255.128.0.0": false} {
				in := newAddressedInput(network, strings.Replace(openStack, "255.255.255.128", mask, 1))
				if err := vmspec.DryRender(in.Template, vmspec.Settings{}); (err == nil) != fits {
					t.Errorf("%s: %v", mask, err)
				}
			}
		})
	}
}

// convertAll converts network data with cloud-init, as its command net-convert does, but starts Python only
// once for all.
const convertAll = `import sys
from cloudinit.cmd.devel import net_convert
for name in sys.argv[1:]:
    print(name, flush=True)
    net_convert.handle_args("net-convert", net_convert.get_parser().parse_args([
        "--network-data", name, "--kind", "yaml", "--directory", name + ".out", "--distro", "debian", "--output-kind", "netplan"]))
`

// convertWithCloudInit converts network-configs with cloud-init's renderer for networkd.
func convertWithCloudInit(t *testing.T, configs ...[]byte) {
	t.Helper()

	script, err := os.ReadFile(exe.FindProgram(t, "cloud-init", "cloud-init"))
	if err != nil {
		t.Fatal(err)
	}

	// The first line of Debian's program names the interpreter that has its modules.
	interpreter, is := strings.CutPrefix(strings.SplitN(string(script), "\n", 2)[0], "#!")
	if !is {
		t.Fatal("cloud-init is not a script")
	}

	dir, args := t.TempDir(), []string{"-c", convertAll}

	for i, config := range configs {
		file := filepath.Join(dir, fmt.Sprintf("in-%d", i))
		if err := os.WriteFile(file, config, 0o600); err != nil {
			t.Fatal(err)
		}

		args = append(args, file)
	}

	output, err := exec.Command(interpreter, args...).CombinedOutput()
	if err != nil {
		t.Errorf("cloud-init: %v\n%s\n%s", err, output, bytes.Join(configs, []byte("---\n")))
	}
}

// validatedUserData holds the user data that cloud-init has already validated, because most machines have the
// same user data.
var validatedUserData sync.Map

func checkUserData(t *testing.T, userData []byte) {
	t.Helper()

	if _, known := validatedUserData.LoadOrStore(string(userData), true); known {
		return
	}

	file := filepath.Join(t.TempDir(), "user-data")
	if err := os.WriteFile(file, userData, 0o600); err != nil {
		t.Fatal(err)
	}

	output, err := exec.Command(exe.FindProgram(t, "cloud-init", "cloud-init"), "schema", "--config-file", file).CombinedOutput()
	if err != nil || !strings.Contains(string(output), "Valid") {
		t.Errorf("cloud-init schema: %v\n%s\n%s", err, output, userData)
	}
}
