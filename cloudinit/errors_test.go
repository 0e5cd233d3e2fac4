// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
)

// TestBadTemplates: each error contains the field, the line if it has one, and the fix. No error contains a
// credential.
func TestBadTemplates(t *testing.T) {
	t.Parallel()

	user := func(text string) func(*cloudinit.Input) {
		return func(in *cloudinit.Input) { in.UserData = "#cloud-config\n" + text }
	}
	network := func(n v1alpha1.MachineNetwork) func(*cloudinit.Input) {
		return func(in *cloudinit.Input) { in.Network = &n }
	}
	delivery := func(d cloudinit.Delivery) func(*cloudinit.Input) {
		return func(in *cloudinit.Input) { in.Delivery = d }
	}
	configFile := func(content string) func(*cloudinit.Input) {
		quoted, _ := json.Marshal(content)

		return user("write_files:\n- path: " + guest.ConfigPath + "\n  content: " + string(quoted) + "\n")
	}

	for name, tc := range map[string]struct {
		change func(*cloudinit.Input)
		want   []string
	}{
		"template syntax":      {user("a: {{ .Hostname"), []string{"cloudInit.userData line 2", "unclosed action"}},
		"unknown variable":     {user("\na: {{ .Nope }}"), []string{"cloudInit.userData line 3", "unknown variable .Nope", ".RunnerName"}},
		"unknown runner field": {user("a: {{ .RunnerConfig.Nope }}"), []string{"line 2", ".RunnerConfig.Nope", ".InstallPath"}},
		"unknown function":     {user("a: {{ env `HOME` }}"), []string{"line 2", "unknown function env", "toJson and base64"}},
		"no file access":       {user("a: {{ readFile `/etc/passwd` }}"), []string{"unknown function readFile"}},
		"bad YAML":             {user("a: 1\n  b: 2"), []string{"cloudInit.userData", "line 3", "fix the template"}},
		"double key":           {user("a: 1\na: 2"), []string{"duplicate key a, first used in line 2"}},
		"not a mapping":        {user("- a"), []string{"must be a YAML mapping", "not a list"}},
		"two documents":        {user("a: 1\n---\nb: 2"), []string{"line 3", "second YAML document"}},
		"unknown anchor":       {user("a: *nope"), []string{"unknown anchor"}},
		"alias bomb":           {user(newAliasBomb()), []string{"alias"}},
		"secret in bad YAML": {func(in *cloudinit.Input) {
			in.UserData, in.Vars.RunnerToken = "#cloud-config\na: *{{ .RunnerToken }}", secretReport
		}, []string{"unknown anchor", "***"}},
		"unknown format":          {func(in *cloudinit.Input) { in.UserData = "packages: [git]" }, []string{"line 1", "begin it with #cloud-config"}},
		"wrong type of runcmd":    {user("runcmd: echo"), []string{"cloudInit.userData.runcmd line 2", "single value", "must be a list"}},
		"wrong type of files":     {user("write_files: {a: b}"), []string{"write_files", "must be a list"}},
		"another host name":       {user("hostname: other"), []string{"cloudInit.userData.hostname line 2", `"other"`, `"ci-abc"`}},
		"another instance id":     {func(in *cloudinit.Input) { in.MetaData = "instance-id: x" }, []string{"cloudInit.metaData.instance-id", `"0e1f-uid"`}},
		"bad meta data":           {func(in *cloudinit.Input) { in.MetaData = "{{ .X }}" }, []string{"cloudInit.metaData line 1"}},
		"network without version": {func(in *cloudinit.Input) { in.NetworkData = "ethernets: {}" }, []string{"cloudInit.networkData", "version: 2"}},
		"bad network version":     {func(in *cloudinit.Input) { in.NetworkData = "network: {version: 3}" }, []string{"version: 1 or version: 2"}},
		"text too large": {func(in *cloudinit.Input) {
			in.UserData = "#cloud-config\na: '" + strings.Repeat("x", 600<<10) + "'"
		}, []string{"cloudInit.userData", "512 KiB", "write less"}},
		"template grows too large": {user(`a: '{{ range 2 }}{{ printf "%300000d" 1 }}{{ end }}'`), []string{"more than 512 KiB"}},
		"template without end":     {user("a: {{ range 1000000000000000 }}{{ end }}"), []string{"cloudInit.userData", "100000 steps"}},
		"template calls itself":    {user(`a: {{ define "x" }}{{ template "x" }}{{ template "x" }}{{ end }}{{ template "x" }}`), []string{"more than 100 deep"}},
		"text doubles":             {user(newDoublingTemplate()), []string{"cloudInit.userData", "more than 2097152 bytes of text"}},
		"merged text too large": {func(in *cloudinit.Input) {
			in.UserData = "#cloud-config\na: '" + strings.Repeat("x", cloudinit.MaxUserData-100) + "'"
		}, []string{"cloudInit.userData", " bytes", "512 KiB"}},
		"program too large": {func(in *cloudinit.Input) {
			in.UserData = "#cloud-config\na: {{ .BootstrapServiceBinary | base64 }}"
			in.Vars.BootstrapServiceBinary = cloudinit.NewBinary(bytes.NewReader(make([]byte, 7<<20)), 7<<20)
		}, []string{"line 2", "7340032 bytes", "bootstrap.delivery"}},
		"program not at hand": {func(in *cloudinit.Input) {
			in.UserData = "#cloud-config\na: {{ .BootstrapServiceBinary | base64 }}"
			in.Vars.BootstrapServiceBinary = nil
		}, []string{"does not provide", "bootstrap.delivery"}},
		"base64 of a list":      {user("a: {{ base64 .SPIFFEEnabled }}"), []string{"toJson first"}},
		"the service's folder":  {user("write_files: [{path: /run/../run/hyperfleet/x}]"), []string{"write_files[0].path line 2", "/run/hyperfleet/x", "another path"}},
		"config, no JSON":       {configFile("x"), []string{guest.ConfigPath, "not a runner configuration", "leave the file out"}},
		"config, unknown field": {configFile(`{"jitconfig":"x"}`), []string{"unknown field"}},
		"config, other runner":  {configFile(`{"runner_name":"other"}`), []string{`"other"`, "{{ .RunnerName }}"}},
		"config, two objects":   {configFile(`{"runner_name":"ci-abc"} x`), []string{"text follows"}},
		"config, appended":      {user("write_files: [{path: " + guest.ConfigPath + ", content: '{}', append: true}]"), []string{"append"}},
		"config, twice": {user("write_files: [{path: " + guest.ConfigPath + ", content: '{\"runner_name\": \"ci-abc\"}'}, " +
			"{path: /etc//hyperfleet/runner-config.json, content: ''}]"), []string{"written twice"}},
		"config, gzip": {user("write_files: [{path: " + guest.ConfigPath + ", content: x, encoding: gzip}]"), []string{"encoding gzip"}},
		"unit and delivery": {func(in *cloudinit.Input) {
			in.UserData = "#cloud-config\nwrite_files: [{path: " + cloudinit.UnitPath + ", content: x}]"
			in.Delivery = cloudinit.Delivery{Method: "iso", SHA256: listChecksums()}
		}, []string{cloudinit.UnitPath, "bootstrap.delivery iso"}},
		"program and delivery": {func(in *cloudinit.Input) {
			in.UserData = "#cloud-config\nwrite_files: [{path: " + guest.ServicePath + ", content: x}]"
			in.Delivery = cloudinit.Delivery{Method: "download", URL: "https://x.example", SHA256: listChecksums()}
		}, []string{guest.ServicePath, "bootstrap.delivery download"}},
		"delivery unknown":        {delivery(cloudinit.Delivery{Method: "mail"}), []string{"image, download or iso"}},
		"delivery without URL":    {delivery(cloudinit.Delivery{Method: "download", SHA256: listChecksums()}), []string{"not the URL of a server"}},
		"delivery, quoted URL":    {delivery(cloudinit.Delivery{Method: "download", URL: "https://x/'$(id)'", SHA256: listChecksums()}), []string{"not the URL"}},
		"delivery without sum":    {delivery(cloudinit.Delivery{Method: "iso"}), []string{"no SHA-256"}},
		"delivery, bad sum":       {delivery(cloudinit.Delivery{Method: "iso", SHA256: map[string]string{"x86_64": "1"}}), []string{"64 hexadecimal"}},
		"delivery, bad arch":      {delivery(cloudinit.Delivery{Method: "iso", SHA256: map[string]string{"*)": strings.Repeat("a", 64)}}), []string{"architecture"}},
		"mode unknown":            {network(v1alpha1.MachineNetwork{Mode: "x"}), []string{"network.mode", "dhcp, static or cloud-init"}},
		"static without settings": {network(v1alpha1.MachineNetwork{Mode: "static"}), []string{"needs network.static"}},
		"static, bad address":     {network(newStaticNetwork("10.0.0.300", "24", "")), []string{"network.static.ipAddress"}},
		"static, bad mask":        {network(newStaticNetwork("10.0.0.3", "255.0.255.0", "")), []string{"network.static.netmask", "ones must come first"}},
		"static, mask too long":   {network(newStaticNetwork("10.0.0.3", "33", "")), []string{"1 to 32"}},
		"static, mixed families":  {network(newStaticNetwork("10.0.0.3", "24", "fe80::1")), []string{"network.static.gateway"}},
		"static, v6 mask":         {network(newStaticNetwork("2001:db8::1", "255.255.0.0", "")), []string{"does not fit"}},
		"bad name server":         {func(in *cloudinit.Input) { in.DNS.Servers = []string{"dns.example"} }, []string{"network.dns.servers"}},
		"long identifier":         {network(v1alpha1.MachineNetwork{DHCP: &v1alpha1.DHCP{ClientIdentifier: strings.Repeat("x", 200)}}), []string{"clientIdentifier", "at most 124"}},
		"bad lease time":          {network(v1alpha1.MachineNetwork{DHCP: &v1alpha1.DHCP{LeaseTime: &metav1.Duration{Duration: time.Millisecond}}}), []string{"leaseTime"}},
		"no identity":             {func(in *cloudinit.Input) { in.InstanceID = "" }, []string{"instance id"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			in := newSampleInput()
			tc.change(&in)

			out, err := cloudinit.Render(in)
			if err == nil {
				t.Fatalf("no error:\n%s", out.UserData)
			}

			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error lacks %q: %v", want, err)
				}
			}

			if strings.Contains(err.Error(), secretJIT) || strings.Contains(err.Error(), secretReport) {
				t.Errorf("error contains a credential: %v", err)
			}

			if out.UserData != nil || out.MetaData != nil {
				t.Error("there is output despite the error")
			}
		})
	}
}

func newStaticNetwork(ip, mask, gateway string) v1alpha1.MachineNetwork {
	return v1alpha1.MachineNetwork{Mode: "static", Static: &v1alpha1.StaticNetwork{IPAddress: ip, Netmask: mask, Gateway: gateway}}
}

// newDoublingTemplate returns a template whose output has 2^60 bytes.
func newDoublingTemplate() string {
	return `{{ $x := "x" }}` + strings.Repeat(`{{ $x = printf "%s%s" $x $x }}`, 60) + "a: {{ len $x }}"
}

// newAliasBomb returns a document of a few lines that expands to millions of values.
func newAliasBomb() string {
	text := []byte("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")

	for i := range 8 {
		ref := fmt.Sprintf("*a%d", i)
		text = fmt.Appendf(text, "a%d: &a%d [%s%s]\n", i+1, i+1, strings.Repeat(ref+",", 9), ref)
	}

	return string(text)
}
