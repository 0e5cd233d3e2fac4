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

// sampler makes users' cloud-configs; one seed makes one of them.
type sampler struct{ *rand.Rand }

// hardTexts are texts that are hard on YAML.
func hardTexts() []string {
	return []string{
		"", "yes", "0644", "1:30", "null", "~", " lead", "trail ", "a: b", "# no comment", "- x", "line\nline\n", "\ttab\n",
		"many\n\n\nblank\n\n", "  indented\nless\n", "{{ not a template }}", "*alias", "&anchor", "!!tag", "'", `"`, "%", "@",
		"é\u2028\u00a0", "\r\n", "\x01", "\ufeff", "<<", "=", "1e3", "0o7", "2001-01-01", "\n", "\n\n", " \n ", "...", "---\n",
	}
}

func (s sampler) text() string {
	texts := hardTexts()
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

// value is any value that YAML can hold, a few levels deep.
func (s sampler) value(depth int) any {
	kinds := 6
	if depth == 0 {
		kinds = 4
	}

	switch s.IntN(kinds) {
	case 0:
		return s.text()
	case 1:
		return s.IntN(1_000_000) - 500_000
	case 2:
		return s.IntN(2) == 0
	case 3:
		return nil
	case 4:
		list := make([]any, s.IntN(4))
		for i := range list {
			list[i] = s.value(depth - 1)
		}

		return list
	default:
		return s.mapping(depth - 1)
	}
}

func (s sampler) mapping(depth int) map[string]any {
	out := map[string]any{}
	for range s.IntN(4) {
		out[s.text()] = s.value(depth)
	}

	return out
}

func (s sampler) user() userSample {
	u := userSample{Others: map[string]any{}}

	for range s.IntN(4) {
		u.Files = append(u.Files, map[string]any{"path": "/home/" + s.text(), "content": s.text(), "x": s.value(1)})
	}

	for range s.IntN(4) {
		u.Commands = append(u.Commands, s.value(1))
	}

	for range s.IntN(3) {
		u.BootCmd = append(u.BootCmd, s.text())
	}

	for range s.IntN(5) {
		u.Others["x-"+s.text()] = s.value(3)
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

// config is the sample as cloud-config; empty lists are left out or null.
func (u userSample) config() map[string]any {
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

// normal reads YAML into plain values.
func normal(t *testing.T, text []byte) map[string]any {
	t.Helper()

	var v map[string]any
	if err := yaml.Unmarshal(text, &v); err != nil {
		t.Fatalf("does not parse: %v\n%s", err, text)
	}

	return v
}

func list(v any) []any {
	l, _ := v.([]any)

	return l
}

// Feature: hyperfleet-operator, Property 5: Cloud-Init Data Merging
//
// Whatever the user's cloud-config and however the bootstrap service arrives: the result
// parses, the user's values and the operator's are all in it, the user's first and in
// their order, and rendering again gives the same bytes.
func TestPropertyCloudInitDataMerging(t *testing.T) {
	t.Parallel()

	property.Check(t, "user and runtime data are merged without loss", property.Options{Runs: 300, Brief: 100}, prop.ForAll(
		func(seed uint64, delivery string, flow bool) (bool, error) {
			user := sampler{rand.New(rand.NewPCG(seed, 0))}.user()

			text := write(t, user.config(), flow)

			in := sampleInput()
			// As a literal of the template language, so that braces are the user's own.
			in.UserData = "#cloud-config\n" + fmt.Sprintf("{{ %q }}", text)
			in.Delivery = cloudinit.Delivery{Method: delivery, URL: "https://x.example", SHA256: sums()}
			in.Network = &v1alpha1.MachineNetwork{DHCP: &v1alpha1.DHCP{RequestStaticLease: true}}

			alone := in
			alone.UserData = ""

			return nothingLost(t, in, alone, normal(t, text))
		},
		gen.UInt64(), gen.OneConstOf("image", "download", "iso"), gen.Bool(),
	))
}

func nothingLost(t *testing.T, in, alone cloudinit.Input, user map[string]any) (bool, error) {
	t.Helper()

	first, err := cloudinit.Render(in)
	if err != nil {
		return false, fmt.Errorf("render: %w", err)
	}

	second, err := cloudinit.Render(in)
	if err != nil || !bytes.Equal(first.UserData, second.UserData) {
		return false, fmt.Errorf("rendered again it differs: %w", err)
	}

	ours, err := cloudinit.Render(alone)
	if err != nil {
		return false, fmt.Errorf("render without user data: %w", err)
	}

	got, runtime := normal(t, first.UserData), normal(t, ours.UserData)
	// The sample has a runcmd, which the job waits for: there is no early start.
	runtime["write_files"] = slices.DeleteFunc(list(runtime["write_files"]), func(v any) bool {
		entry, _ := v.(map[string]any)

		return entry["path"] == guest.StartPath
	})

	want := maps.Clone(runtime)

	for k, v := range user {
		if added := list(runtime[k]); added != nil {
			v = append(append([]any{}, list(v)...), added...)
		}

		want[k] = v
	}

	if diff := cmp.Diff(want, got); diff != "" {
		return false, fmt.Errorf("(-want +got):\n%s\n%s", diff, first.UserData)
	}

	return true, nil
}

// write gives a sample as YAML in blocks, or as JSON, which is YAML as well. The library
// cannot read all the blocks that it writes: those samples are JSON.
func write(t *testing.T, sample map[string]any, flow bool) []byte {
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
	if err != nil || yaml.Unmarshal(text, &again) != nil || !cmp.Equal(again, normal(t, asJSON)) {
		return asJSON
	}

	return text
}

// FuzzRender: no template or YAML makes Render fail in another way than by an error, and
// what it makes can be read again.
func FuzzRender(f *testing.F) {
	f.Add("#cloud-config\nwrite_files:\n- path: " + guest.ConfigPath + "\n  content: '{}'\n")
	f.Add("#cloud-config\na: &a [1]\nruncmd: *a\n<<: {bootcmd: [x]}\n")
	f.Add("#cloud-config\nx: >\n  folded\n   more\n\n  text\n")
	f.Add("## template: jinja\n#cloud-config\n{% if 1 %}\n")
	f.Add("#!/bin/sh\necho {{ .RunnerName }}\n")
	f.Fuzz(func(t *testing.T, text string) {
		in := sampleInput()
		in.UserData = text

		out, err := cloudinit.Render(in)
		if err != nil {
			return
		}

		if bytes.HasPrefix(out.UserData, []byte("#cloud-config")) {
			normal(t, out.UserData)
		}
	})
}

// FuzzNetworkData: whatever network data a user writes, they are refused, or have an address
// of the pool and can be read again.
func FuzzNetworkData(f *testing.F) {
	f.Add("version: 2\nethernets:\n  a: {dhcp4: true}\n  b:\n", "a")
	f.Add("network: {version: 2, ethernets: {a: {match: {name: e*}, addresses: {{ .Addresses }}}}}", "")
	f.Add(`{"links": [{"id": "a", "type": "phy"}], "networks": [{"id": "n", "type": "ipv4", "link": "a"}], "services": []}`, "")
	f.Add("version: 1\nconfig: [{type: physical, name: a, subnets: [{type: static, address: {{ .StaticIP }}}]}]", "")
	f.Add("version: 2\nbridges: &b {br0: {}}\nvlans: *b\n", "br0")
	f.Fuzz(func(t *testing.T, text, device string) {
		in := sampleInput()
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
