// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kargs_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/guest/kargs"
)

// Names of the files on a drive.
const (
	networkData   = "openstack/latest/network_data.json"
	networkConfig = "network-config"
)

const (
	v4Data = `{
  "links": [{"id": "l0", "name": "eth0", "type": "phy", "ethernet_mac_address": "52:54:00:00:00:01"}],
  "networks": [{"id": "n0", "network_id": "n0", "type": "ipv4", "link": "l0", "ip_address": "192.168.1.10",
    "netmask": "255.255.255.0", "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.168.1.1"},
    {"network": "10.0.0.0", "netmask": "255.0.0.0", "gateway": "192.168.1.2"}]}],
  "services": [{"type": "dns", "address": "8.8.8.8"}, {"type": "dns", "address": "8.8.8.8"}, {"type": "ntp", "address": "1.2.3.4"}]
}`
	v6Data = `{
  "links": [{"id": "l0", "name": "eth0", "type": "phy", "mtu": null}],
  "networks": [{"id": "n0", "type": "ipv6", "link": "l0", "ip_address": "2001:db8::10", "netmask": "ffff:ffff:ffff:ffff::",
    "routes": [{"network": "::", "netmask": "::", "gateway": "2001:db8::1"}]}],
  "services": [{"type": "dns", "address": "2001:4860:4860::8888"}]
}`
	dualData = `{
  "links": [
    {"id": "l1", "name": "eth1", "type": "phy"},
    {"id": "l2", "type": "phy", "ethernet_mac_address": "06:AA:BB:CC:DD:02"},
    {"id": "l0", "name": "eth0", "type": "phy"},
    {"id": "l3", "type": "phy"},
    {"id": "l4", "name": "eth4", "type": "phy"}
  ],
  "networks": [
    {"id": "n0", "type": "ipv4", "link": "l0", "ip_address": "192.168.1.10", "netmask": "24",
      "routes": [{"network": "0.0.0.0", "netmask": "0.0.0.0", "gateway": "192.168.1.1"}]},
    {"id": "n1", "type": "ipv6", "link": "l0", "ip_address": "2001:db8::10/64",
      "routes": [{"network": "::", "netmask": "0", "gateway": "2001:db8::1"}]},
    {"id": "n2", "type": "ipv4_dhcp", "link": "l1"},
    {"id": "n3", "type": "ipv6_dhcp", "link": "l1"},
    {"id": "n4", "type": "ipv4_dhcp", "link": "l2"},
    {"id": "n5", "type": "ipv4_dhcp", "link": "l3"}
  ],
  "services": [{"type": "dns", "address": "8.8.8.8"}, {"type": "dns", "address": "2001:4860:4860::8888"}]
}`
	dualArguments = "ip=192.168.1.10:::255.255.255.0::eth0:static ip=[2001:db8::10]:::64::eth0:static " +
		"rd.route=0.0.0.0/0:192.168.1.1 rd.route=[::/0]:[2001:db8::1] " +
		"ip=eth1:dhcp,dhcp6 ip=06:aa:bb:cc:dd:02:dhcp nameserver=8.8.8.8 nameserver=[2001:4860:4860::8888]"
)

// goldens are drives and the arguments that afterburn prints for them.
func goldens() map[string]struct{ file, data, want, warning string } {
	return map[string]struct{ file, data, want, warning string }{
		"v4": {file: networkData, data: v4Data,
			want: "ip=192.168.1.10:::255.255.255.0::eth0:static rd.route=0.0.0.0/0:192.168.1.1 nameserver=8.8.8.8"},
		"v6": {file: networkData, data: v6Data,
			want: "ip=[2001:db8::10]:::64::eth0:static rd.route=[::/0]:[2001:db8::1] nameserver=[2001:4860:4860::8888]"},
		"dual stack, DHCP, an interface by its MAC, one by nothing": {file: networkData, data: dualData, want: dualArguments,
			warning: "neither name nor MAC"},
		"DHCP 4": {file: networkData, data: `{"links":[{"id":"a","type":"phy","name":"eth1"}],"networks":[{"id":"n","type":"ipv4_dhcp","link":"a"}]}`,
			want: "ip=eth1:dhcp"},
		"DHCP 6": {file: networkData, data: `{"links":[{"id":"a","type":"phy","name":"eth1"}],"networks":[{"id":"n","type":"ipv6_dhcp","link":"a"}]}`,
			want: "ip=eth1:dhcp6"},
		"DHCP takes no routes of its own accord": {file: networkData, data: `{"links":[{"id":"a","type":"phy","name":"eth1"}],
			"networks":[{"id":"n","type":"ipv4_dhcp","link":"a","routes":[{"network":"0.0.0.0","netmask":"0.0.0.0","gateway":"10.0.0.1"}]}],
			"services":[{"type":"dns","address":"10.0.0.2"}]}`, want: "ip=eth1:dhcp nameserver=10.0.0.2"},
		"DHCP without router and name servers": {file: networkData, data: `{"links":[{"id":"a","type":"phy","name":"eth1"}],
			"networks":[{"id":"n","type":"ipv4_dhcp","link":"a","accept_dhcp_option":["subnet_mask"],
			"routes":[{"network":"0.0.0.0","netmask":"0.0.0.0","gateway":"10.0.0.1"}]}],
			"services":[{"type":"dns","address":"10.0.0.2"}]}`, want: "ip=eth1:dhcp rd.route=0.0.0.0/0:10.0.0.1 nameserver=10.0.0.2"},
		"DHCP with router and name servers": {file: networkData, data: `{"links":[{"id":"a","type":"phy","name":"eth1"}],
			"networks":[{"id":"n","type":"ipv4_dhcp","link":"a","accept_dhcp_option":["router","domain_name_server"],
			"routes":[{"network":"0.0.0.0","netmask":"0.0.0.0","gateway":"10.0.0.1"}]}],
			"services":[{"type":"dns","address":"10.0.0.2"}]}`, want: "ip=eth1:dhcp"},
		"a route without an address": {file: networkData, data: `{"links":[{"id":"a","type":"phy","name":"eno101"}],
			"networks":[{"id":"n","type":"ipv4","link":"a","routes":[{"network":"0.0.0.0","netmask":"0.0.0.0","gateway":"10.0.0.1"}]}]}`,
			want: "rd.route=0.0.0.0/0:10.0.0.1"},
		"an unknown type of network": {file: networkData, data: `{"links":[{"id":"a","type":"phy","name":"eth0"}],
			"networks":[{"id":"n","type":"ipv6_slaac","link":"a","dns_nameservers":["10.0.0.2"]}]}`, want: "nameserver=10.0.0.2", warning: "ipv6_slaac"},
		"a network of no link": {file: networkData, data: `{"links":[],"networks":[{"id":"n","type":"ipv4","link":"b"}]}`, warning: `no link "b"`},
		"network data as YAML": {file: networkData, data: "links:\n- {id: a, type: phy, name: eth0}\nnetworks:\n- id: n\n  type: ipv4\n  link: a\n  ip_address: 10.0.0.5/8\n",
			want: "ip=10.0.0.5:::255.0.0.0::eth0:static"},
		"nothing": {file: "user-data", data: "", warning: "neither"},

		"version 1": {file: networkConfig, data: `version: 1
config:
  - type: physical   # the first device
    name: eth0
    mac_address: "52:54:00:00:00:01"
    subnets:
      - type: static
        address: 192.168.1.10
        netmask: 255.255.255.0
        gateway: 192.168.1.1
        dns_nameservers: [8.8.8.8]
      - type: static6
        address: 2001:db8::10/64
        gateway: 2001:db8::1
  - type: physical
    name: eth1
    subnets:
    - type: dhcp
    - type: dhcp6
  - type: physical
    mac_address: 06:aa:bb:cc:dd:02
    subnets: [{type: dhcp4}]
  - type: nameserver
    address:
      - 2001:4860:4860::8888
  - type: nameserver
    address: [9.9.9.9]
`, want: dualArguments, warning: "only the first"},
		"version 1: a gateway next to routes does not count": {file: networkConfig, data: `version: 1
config:
  - type: physical
    name: eth0
    subnets:
      - type: dhcp4
        gateway: 192.168.1.2
        routes:
          - destination: 0.0.0.0/0
            gateway: 192.168.1.1
      - type: dhcp6
        gateway: "2001:db8::2"
        routes:
          - {network: "::", netmask: "::", gateway: "2001:db8::1"}
`, want: "ip=eth0:dhcp,dhcp6 rd.route=0.0.0.0/0:192.168.1.1 rd.route=[::/0]:[2001:db8::1]"},
		"version 2": {file: networkConfig, data: `version: 2
ethernets:
  other:
    match: {macaddress: "06:AA:bb:cc:dd:02"}
    dhcp4: true
  eth1:
    dhcp4: true
    dhcp6: true
  eth0:
    match:
      macaddress: '52:54:00:00:00:01'
    set-name: lan0
    addresses: [192.168.1.10/24, "2001:db8::10/64"]
    gateway4: 192.168.1.1
    gateway6: 2001:db8::1
    nameservers:
      search: [example.com]
      addresses: [8.8.8.8, 2001:4860:4860::8888]
`, want: dualArguments},
		"version 2: gateways next to routes do not count": {file: networkConfig, data: `version: 2
ethernets:
  eth0:
    dhcp4: true
    gateway4: 192.168.1.2
    routes:
      - to: ::/0
        via: 2001:db8::1
`, want: "ip=eth0:dhcp rd.route=[::/0]:[2001:db8::1]"},
		"version 2 as JSON": {file: networkConfig, data: `{"version": 2, "ethernets": {"eno101": {"addresses": ["10.0.0.5/26"]}}}`,
			want: "ip=10.0.0.5:::255.255.255.192::eno101:static"},
	}
}

func TestGolden(t *testing.T) {
	t.Parallel()

	for name, tc := range goldens() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			got, err := kargs.Read(fstest.MapFS{tc.file: {Data: []byte(tc.data)}})
			if err != nil {
				t.Fatal(err)
			}

			if diff := cmp.Diff(tc.want, got.String()); diff != "" {
				t.Error(diff)
			}

			said := strings.Join(got.Warnings, "\n")
			if tc.warning == "" && said != "" || !strings.Contains(said, tc.warning) {
				t.Errorf("warnings %q, want %q", said, tc.warning)
			}
		})
	}
}

// TestRefused: what afterburn fails on fails, and says where and why.
func TestRefused(t *testing.T) {
	t.Parallel()

	for name, tc := range map[string]struct{ file, data, want string }{
		"no JSON, no YAML":  {networkData, `{"links": [`, "line 1"},
		"a link without id": {networkData, `{"links": [{"type": "phy"}]}`, "links[0].id: is missing"},
		"no netmask that is": {networkData, strings.Replace(v4Data, "255.255.255.0", "255.0.255.0", 1),
			`networks[0].netmask: "255.0.255.0": is not a netmask`},
		"no address":      {networkData, strings.Replace(v4Data, "192.168.1.10", "192.168.1.300", 1), "networks[0].ip_address"},
		"no MAC":          {networkData, strings.Replace(v4Data, "52:54:00:00:00:01", "52:54", 1), "links[0].ethernet_mac_address"},
		"no gateway":      {networkData, strings.Replace(v4Data, `"gateway"`, `"via"`, 1), "networks[0].routes[0].gateway: is missing"},
		"a double key":    {networkData, `{"links": [], "links": []}`, `"links" is there twice`},
		"two arguments":   {networkData, strings.Replace(v4Data, `"eth0"`, `"eth0 rd.break"`, 1), "links[0].name: must be a text without blanks"},
		"default":         {networkConfig, "version: 2\nethernets:\n  eth0:\n    routes: [{to: default, via: 10.0.0.1}]\n", "write 0.0.0.0/0"},
		"an anchor":       {networkConfig, "version: 2\nethernets: &a\n  eth0: {}\n", "line 2"},
		"a tab":           {networkConfig, "version: 2\nethernets:\n\teth0: {}\n", "line 3: found character that cannot start any token"},
		"two documents":   {networkConfig, "version: 2\n---\nversion: 2\n", "line 2"},
		"a block text":    {networkConfig, "version: 2\nethernets:\n  eth0: |\n    a\n", "line 3"},
		"indented wrong":  {networkConfig, "version: 2\n  ethernets:\n", "line 2: mapping values are not allowed"},
		"yes is not true": {networkConfig, "version: 2\nethernets: {eth0: {dhcp4: yes}}\n", "ethernets.eth0.dhcp4: must be true or false"},
		"a list":          {networkConfig, "- a\n", "must be a mapping"},
		"far too deep":    {networkConfig, "a: " + strings.Repeat("[", 100) + strings.Repeat("]", 100), "levels deep"},
		"far too large":   {networkConfig, strings.Repeat("# comment\n", 200_000), "at most"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			_, err := kargs.Read(fstest.MapFS{tc.file: {Data: []byte(tc.data)}})
			if err == nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.file) {
				t.Errorf("error %v, want %q and %q", err, tc.want, tc.file)
			}
		})
	}
}

// disk makes a root with devices of these labels, whose files are found when "mounted".
func disk(t *testing.T, cmdline string, labels map[string]string) kargs.Command {
	t.Helper()

	root := t.TempDir()
	dir := filepath.Join(root, "dev", "disk", "by-label")

	if err := errors.Join(os.MkdirAll(dir, 0o755), os.MkdirAll(filepath.Join(root, "proc"), 0o755),
		os.WriteFile(filepath.Join(root, "proc", "cmdline"), []byte(cmdline), 0o600)); err != nil {
		t.Fatal(err)
	}

	for label := range labels {
		if err := os.WriteFile(filepath.Join(dir, label), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	mount := func(device, dir string) (func() error, error) {
		file := filepath.Join(dir, networkConfig)
		if filepath.Base(device) == "config-2" {
			file = filepath.Join(dir, networkData)
		}

		data := labels[filepath.Base(device)]
		if data == "broken" {
			return nil, errors.New("wrong fs type")
		}

		err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(data), 0o600))

		return func() error { return errors.Join(os.RemoveAll(filepath.Join(dir, "openstack")), os.RemoveAll(file)) }, err
	}

	return kargs.Command{Root: root, Mount: mount}
}

func TestCommand(t *testing.T) {
	t.Parallel()

	const v4Arguments = "ip=192.168.1.10:::255.255.255.0::eth0:static rd.route=0.0.0.0/0:192.168.1.1 nameserver=8.8.8.8\n"

	const v2 = "version: 2\nethernets: {eth0: {dhcp4: true}}\n"

	for name, tc := range map[string]struct {
		cmdline       string
		labels        map[string]string
		args          []string
		code          int
		stdout, stder string
	}{
		"config drive first":         {labels: map[string]string{"config-2": v4Data, "cidata": v2}, stdout: v4Arguments},
		"else cidata":                {labels: map[string]string{"cidata": v2}, stdout: "ip=eth0:dhcp\n"},
		"by provider":                {labels: map[string]string{"cidata": v2}, args: []string{"--provider", "kubevirt"}, stdout: "ip=eth0:dhcp\n"},
		"another provider":           {args: []string{"--provider", "aws"}, code: 2, stder: `provider "aws": must be kubevirt`},
		"no drive":                   {code: 1, stder: "find config drive: no drive has the label config-2 or cidata"},
		"does not mount":             {labels: map[string]string{"config-2": "broken"}, code: 1, stder: "read config drive: wrong fs type"},
		"cannot be read":             {labels: map[string]string{"config-2": "{"}, code: 1, stder: "bootstrap-service kargs: read network data: " + networkData},
		"the kernel's arguments win": {cmdline: "quiet ip=dhcp\n", labels: map[string]string{"cidata": "{"}, stder: "they win"},
		"arguments like ip= do not":  {cmdline: "skip=1\n", labels: map[string]string{"cidata": v2}, stdout: "ip=eth0:dhcp\n"},
		"nothing, with a default":    {labels: map[string]string{"cidata": "version: 2"}, args: []string{"--default-value", "ip=dhcp rd.neednet=1"}, stdout: "ip=dhcp rd.neednet=1\n"},
		"nothing":                    {labels: map[string]string{"cidata": "version: 2"}},
		"unknown flag":               {args: []string{"--x"}, code: 2, stder: "flag provided but not defined"},
		"too much":                   {args: []string{"a", "b"}, code: 2, stder: `unknown argument "a"`},
		"no directory":               {args: []string{"--config-drive", "/none"}, code: 1, stder: "/none: is not a directory"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var stdout, stderr bytes.Buffer

			c := disk(t, tc.cmdline, tc.labels)
			c.Stdout, c.Stderr = &stdout, &stderr

			if code := c.Run(tc.args); code != tc.code || stdout.String() != tc.stdout || !strings.Contains(stderr.String(), tc.stder) {
				t.Errorf("exit code %d, want %d\n%s\n%s", code, tc.code, &stdout, &stderr)
			}
		})
	}
}

// TestDirectory: a directory will do for a drive, as an argument or by flag.
func TestDirectory(t *testing.T) {
	t.Parallel()

	dir := t.TempDir()
	file := filepath.Join(dir, networkData)

	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(dualData), 0o600)); err != nil {
		t.Fatal(err)
	}

	for _, args := range [][]string{{dir}, {"--config-drive", dir}} {
		var stdout, stderr bytes.Buffer

		c := kargs.Command{Stdout: &stdout, Stderr: &stderr}
		if code := c.Run(args); code != 0 || stdout.String() != dualArguments+"\n" {
			t.Errorf("%v: exit code %d\n%s\n%s", args, code, &stdout, &stderr)
		}
	}
}
