// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package cloudinit_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	"go.yaml.in/yaml/v3"

	"github.com/hyperfleet/hyperfleet/api/guest"
	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/cloudinit"
	"github.com/hyperfleet/hyperfleet/cloudinit/netdata"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// generator generates cloud-configs of users from a seed.
type generator struct{ *rand.Rand }

// listHardTexts returns texts that YAML must quote or escape.
func listHardTexts() []string {
	return []string{
		"", "yes", "0644", "1:30", "null", "~", " lead", "trail ", "a: b", "# no comment", "- x", "line\nline\n", "\ttab\n",
		"many\n\n\nblank\n\n", "  indented\nless\n", "{{ not a template }}", "*alias", "&anchor", "!!tag", "'", `"`, "%", "@",
		"é\u2028\u00a0", "\r\n", "\x01", "\ufeff", "<<", "=", "1e3", "0o7", "2001-01-01", "\n", "\n\n", " \n ", "...", "---\n",
	}
}

func (s generator) newText() string {
	texts := listHardTexts()
	if s.IntN(2) == 0 {
		return texts[s.IntN(len(texts))]
	}

	var out strings.Builder

	for range s.IntN(6) {
		out.WriteRune(rune(s.IntN(0x2fff) + 1))
		out.WriteString(texts[s.IntN(len(texts))])
	}

	return out.String()
}

// newValue generates a YAML value with a few levels.
func (s generator) newValue(depth int) any {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}

	switch s.IntN(kinds) {
	case 0:
		return s.newText()
	case 1:
		return s.IntN(1_000_000) - 500_000
	case 2:
		return s.IntN(2) == 0
	case 3:
		return nil
	case 4:
		list := make([]any, s.IntN(4))
		for i := range list {
			list[i] = s.newValue(depth - 1)
		}

		return list
	default:
		return s.newMapping(depth - 1)
	}
}

func (s generator) newMapping(depth int) map[string]any {
	out := map[string]any{}
	for range s.IntN(4) {
		out[s.newText()] = s.newValue(depth)
	}

	return out
}

func (s generator) newUserSample() userSample {
	u := userSample{Others: map[string]any{}}

	for range s.IntN(4) {
		u.Files = append(u.Files, map[string]any{"path": "/home/" + s.newText(), "content": s.newText(), "x": s.newValue(1)})
	}

	for range s.IntN(4) {
		u.Commands = append(u.Commands, s.newValue(1))
	}

	for range s.IntN(3) {
		u.BootCmd = append(u.BootCmd, s.newText())
	}

	for range s.IntN(5) {
		u.Others["x-"+s.newText()] = s.newValue(3)
	}

	return u
}

// userSample is one user's cloud-config.
type userSample struct {
	Files    []map[string]any
	Commands []any
	BootCmd  []any
	Others   map[string]any
}

// toConfig returns the sample as cloud-config. Empty lists are omitted or null.
func (u userSample) toConfig() map[string]any {
	c := map[string]any{}

	maps.Copy(c, u.Others)

	if len(u.Files) > 0 {
		c["write_files"] = u.Files
	}

	if len(u.Commands) > 0 {
		c["runcmd"] = u.Commands
	} else {
		c["runcmd"] = nil
	}

	if len(u.BootCmd) > 0 {
		c["bootcmd"] = u.BootCmd
	}

	return c
}

// parseYAML parses YAML into plain values.
func parseYAML(t *testing.T, text []byte) map[string]any {
	t.Helper()

	var v map[string]any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatalf("does not parse: %v\n%s", err, text)
	}

	return v
}

func toList(v any) []any {
	l, _ := v.([]any)

	return l
}

// Feature: hyperfleet-operator, Property 5: Cloud-Init Data Merging
//
// For any cloud-config of a user and any delivery of the bootstrap service, the result is valid and contains
// the values of the user and of the operator. The user's values come first and keep their order. A second
// rendering returns the same bytes.
// their order, and rendering again gives the same bytes.
func TestPropertyCloudInitDataMerging(t *testing.T) {
	t.Parallel()

	property.Check(t, "user and runtime data are merged without loss", property.Options{Runs: 300, Brief: 100}, prop.ForAll(
		func(seed uint64, delivery string, flow bool) (bool, error) {
			user := generator{rand.New(rand.NewPCG(seed, 0))}.newUserSample()

			text := writeYAML(t, user.toConfig(), flow)

			in := newSampleInput()
			// The data is a literal of the template language, so that its braces are not interpreted.
			in.UserData = "#cloud-config\n" + fmt.Sprintf("{{ %q }}", text)
			in.Delivery = cloudinit.Delivery{Method: delivery, URL: "https://x.example", SHA256: listChecksums()}
			in.Network = &v1alpha1.MachineNetwork{DHCP: &v1alpha1.DHCP{RequestStaticLease: true}}

			alone := in
			alone.UserData = ""

			return checkMerge(t, in, alone, parseYAML(t, text))
		},
		gen.UInt64(), gen.OneConstOf("image", "download", "iso"), gen.Bool(),
	))
}

// checkMerge checks that the output contains the values of the user and of the operator.
func checkMerge(t *testing.T, in, alone cloudinit.Input, user map[string]any) (bool, error) {
	t.Helper()

	first, err := cloudinit.Render(in)
	if err != nil {
		return false, fmt.Errorf("render: %w", err)
	}

	second, err := cloudinit.Render(in)
	if err != nil || !bytes.Equal(first.UserData, second.UserData) {
		return false, fmt.Errorf("the second rendering differs: %w", err)
	}

	ours, err := cloudinit.Render(alone)
	if err != nil {
		return false, fmt.Errorf("render without user data: %w", err)
	}

	got, runtime := parseYAML(t, first.UserData), parseYAML(t, ours.UserData)
	// The service does not start early, because the sample has a runcmd, which the job waits for.
	runtime["write_files"] = slices.DeleteFunc(toList(runtime["write_files"]), func(v any) bool {
		entry, _ := v.(map[string]any)

		return entry["path"] == guest.StartPath
	})

	want := maps.Clone(runtime)

	for k, v := range user {
		if added := toList(runtime[k]); added != nil {
			v = append(append([]any{}, toList(v)...), added...)
		}

		want[k] = v
	}

	if diff := cmp.Diff(want, got); diff != "" {
		return false, fmt.Errorf("(-want +got):\n%s\n%s", diff, first.UserData)
	}

	return true, nil
}

// writeYAML returns a sample as YAML blocks, or as JSON, which is also YAML. Samples whose blocks the library
// cannot read are JSON.
func writeYAML(t *testing.T, sample map[string]any, flow bool) []byte {
	t.Helper()

	raw, err := json.Marshal(sample)
	if err != nil {
		t.Fatal(err)
	}

	var asJSON []byte

	for _, r := range string(raw) { // YAML takes some characters only when escaped
		if r < 0x7f {
			asJSON = append(asJSON, byte(r))
		} else {
			asJSON = fmt.Appendf(asJSON, `\u%04x`, r)
		}
	}

	if flow {
		return asJSON
	}

	var again map[string]any

	text, err := yaml.Marshal(sample)
	if err != nil || yaml.Unmarshal(text, &again) != nil || !cmp.Equal(again, parseYAML(t, asJSON)) {
		return asJSON
	}

	return text
}

// FuzzRender checks that Render does not panic for any template or YAML, and that its output is valid.
func FuzzRender(f *testing.F) {
	f.Add("#cloud-config\nwrite_files:\n- path: " + guest.ConfigPath + "\n  content: '{}'\n")
	f.Add("#cloud-config\na: &a [1]\nruncmd: *a\n<<: {bootcmd: [x]}\n")
	f.Add("#cloud-config\nx: >\n  folded\n   more\n\n  text\n")
	f.Add("## template: jinja\n#cloud-config\n{% if 1 %}\n")
	f.Add("#!/bin/sh\necho {{ .RunnerName }}\n")
	f.Fuzz(func(t *testing.T, text string) {
		in := newSampleInput()
		in.UserData = text

		out, err := cloudinit.Render(in)
		if err != nil {
			return
		}

		if bytes.HasPrefix(out.UserData, []byte("#cloud-config")) {
			parseYAML(t, out.UserData)
		}
	})
}

// FuzzNetworkData checks that any network data of a user is either rejected, or results in valid data with an
// address of the pool.
func FuzzNetworkData(f *testing.F) {
	f.Add("version: 2\nethernets:\n  a: {dhcp4: true}\n  b:\n", "a")
	f.Add("network: {version: 2, ethernets: {a: {match: {name: e*}, addresses: {{ .Addresses }}}}}", "")
	f.Add(`{"links": [{"id": "a", "type": "phy"}], "networks": [{"id": "n", "type": "ipv4", "link": "a"}], "services": []}`, "")
	f.Add("version: 1\nconfig: [{type: physical, name: a, subnets: [{type: static, address: {{ .StaticIP }}}]}]", "")
	f.Add("version: 2\nbridges: &b {br0: {}}\nvlans: *b\n", "br0")
	f.Fuzz(func(t *testing.T, text, device string) {
		in := newSampleInput()
		in.NetworkData = text
		in.Addresses = []netip.Prefix{netip.MustParsePrefix("10.0.0.10/24"), netip.MustParsePrefix("fd00::10/64")}
		in.Vars.Addresses, in.Vars.StaticIP = cloudinit.List{"10.0.0.10/24", "fd00::10/64"}, "10.0.0.10"
		in.Network = &v1alpha1.MachineNetwork{
			Mode: v1alpha1.NetworkModeCloudInit, Interface: device, Static: &v1alpha1.StaticNetwork{Pool: &v1alpha1.AddressPool{}},
		}

		out, err := cloudinit.Render(in)
		if err != nil {
			if out.NetworkConfig != nil {
				t.Errorf("an error and data: %v", err)
			}

			return
		}

		if there, err := netdata.HasAddress(out.NetworkConfig, in.Addresses); err != nil || !there {
			t.Errorf("has no address: %v\n%s\nfrom\n%s", err, out.NetworkConfig, text)
		}
	})
}
