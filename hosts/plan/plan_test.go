// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

func newFilePart(label string, reapplies ...string) plan.Part {
	return plan.Part{
		Label: label, Kind: plan.File, Schedule: plan.Always, Path: "/etc/" + label, Mode: 0o644, Owner: "root:root",
		Content: plan.NewText(label), Apply: "cat >/etc/" + label, Probe: "test -e /etc/" + label, Reapplies: reapplies,
	}
}

func changePart(part plan.Part, change func(*plan.Part)) plan.Part {
	change(&part)

	return part
}

func listLabels(parts []plan.Part) []string {
	var out []string
	for _, part := range parts {
		out = append(out, part.Label)
	}

	return out
}

func mustNew(t *testing.T, parts ...plan.Part) plan.Plan {
	t.Helper()

	p, err := plan.New(parts...)
	if err != nil {
		t.Fatal(err)
	}

	return p
}

// A host without a hash drifts once. Without a desired hash, no host drifts.
// drift.TestHostConfigDrift covers the consequences.
func TestDrifted(t *testing.T) {
	t.Parallel()

	for _, tc := range []struct {
		machine, operator string
		want              bool
	}{{"a", "a", false}, {"a", "b", true}, {"", "b", true}, {"a", "", false}, {"", "", false}} {
		if got := plan.HasDrifted(tc.machine, tc.operator); got != tc.want {
			t.Errorf("Drifted(%q, %q) = %v", tc.machine, tc.operator, got)
		}
	}
}

func TestNewErrors(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		parts []plan.Part
		want  string
	}{
		"label with a space":   {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Label = "a b" })}, "words of a-z"},
		"duplicate label":      {[]plan.Part{newFilePart("a"), newFilePart("a")}, "used twice"},
		"unknown kind":         {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Kind = "link" })}, "file, unit, binary or script"},
		"no schedule":          {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Schedule = "" })}, "always or first-boot"},
		"no script":            {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Apply = "" })}, "Apply script is missing"},
		"no probe":             {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Probe = "" })}, "probe is missing"},
		"content and a secret": {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Secret = log.NewSecret("s") })}, "content and a secret"},
		"relative path":        {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Path = "etc/a" })}, "absolute"},
		"path that climbs":     {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Path = "/etc/../a" })}, "without . and .."},
		"world-writable":       {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Mode = 0o666 })}, "only the owner may have write permission"},
		"no mode":              {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Mode = 0 })}, "mode 0"},
		"owner without group":  {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Owner = "root" })}, "user:group"},
		"script with a path":   {[]plan.Part{changePart(newFilePart("a"), func(p *plan.Part) { p.Kind = plan.Script })}, "leaves no file"},
		"reapplies an earlier": {[]plan.Part{newFilePart("a"), newFilePart("b", "a")}, "not a later part"},
		"reapplies on first boot": {
			[]plan.Part{newFilePart("a", "b"), changePart(newFilePart("b"), func(p *plan.Part) { p.Schedule = plan.FirstBoot })},
			"not a later part that is always applied",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p, err := plan.New(tc.parts...)
			if err == nil || !strings.Contains(err.Error(), tc.want) || len(p.Parts()) != 0 {
				t.Errorf("New() = %v, %v: want an error with %q", listLabels(p.Parts()), err, tc.want)
			}
		})
	}
}

func TestDriftSteps(t *testing.T) {
	t.Parallel()

	once := changePart(newFilePart("once"), func(p *plan.Part) { p.Schedule = plan.FirstBoot })
	p := mustNew(t, once, newFilePart("program", "job"), newFilePart("unit", "job"), newFilePart("job", "network"), newFilePart("other"), newFilePart("network"))

	cases := map[string]struct {
		drifted, want []string
	}{
		"nothing":                        {nil, nil},
		"alone":                          {[]string{"other"}, []string{"other"}},
		"with dependent parts":           {[]string{"unit"}, []string{"unit", "job", "network"}},
		"in the plan's order, once each": {[]string{"unit", "program"}, []string{"program", "unit", "job", "network"}},
		"no parts of the first boot":     {[]string{"once", "other"}, []string{"other"}},
		"unknown part":                   {[]string{"gone"}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if diff := cmp.Diff(tc.want, listLabels(p.DriftSteps(tc.drifted...))); diff != "" {
				t.Error(diff)
			}
		})
	}

	if diff := cmp.Diff(listLabels(p.Parts()), listLabels(p.FirstBootSteps())); diff != "" {
		t.Error(diff)
	}
}

func TestDiffNamesParts(t *testing.T) {
	t.Parallel()

	before := mustNew(t, newFilePart("a"), newFilePart("b"), newFilePart("c")).Digests()
	after := mustNew(t, newFilePart("d"), newFilePart("a"), changePart(newFilePart("b"), func(p *plan.Part) { p.Mode = 0o600 })).Digests()
	want := []plan.Change{{Label: "d", Kind: plan.Added}, {Label: "b", Kind: plan.Changed}, {Label: "c", Kind: plan.Removed}}

	if diff := cmp.Diff(want, plan.Diff(after, before)); diff != "" {
		t.Error(diff)
	}
}

func TestProbeAndSecretAreInNoDigest(t *testing.T) {
	t.Parallel()

	bare := changePart(newFilePart("a"), func(p *plan.Part) { p.Content = plan.Content{} })
	for name, change := range map[string]func(*plan.Part){
		"probe":  func(p *plan.Part) { p.Probe = "true" },
		"secret": func(p *plan.Part) { p.Secret = log.NewSecret("s") },
	} {
		if changePart(bare, change).Digest() != bare.Digest() {
			t.Errorf("a change of the %s changes the digest", name)
		}
	}
}

type config struct {
	Common string   `host:"fleet"`
	Lists  []string `host:"fleet"`
	Own    string   `host:"per-host"`
}

func TestClearPerHost(t *testing.T) {
	t.Parallel()

	got := plan.ClearPerHost(config{Common: "a", Lists: []string{"b"}, Own: "c"})
	if diff := cmp.Diff(config{Common: "a", Lists: []string{"b"}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestValidateTags(t *testing.T) {
	t.Parallel()

	if err := plan.ValidateTags[config](); err != nil {
		t.Error(err)
	}

	if err := plan.ValidateTags[struct{ Bare string }](); err == nil || !strings.Contains(err.Error(), "Bare") {
		t.Errorf("a field without a tag: %v", err)
	}

	if err := plan.ValidateTags[struct {
		Both string `host:"fleet,per-host"`
	}](); err == nil {
		t.Error("a field with both tags was accepted")
	}
}

func TestReadProbe(t *testing.T) {
	t.Parallel()

	p := mustNew(t, newFilePart("a"), newFilePart("b"))
	cases := map[string]struct{ out, wrong string }{
		"complete":         {out: "a intact\nb lost\n"},
		"truncated":        {out: "a intact\n", wrong: "part b is missing"},
		"nothing":          {wrong: "part a is missing"},
		"twice":            {out: "a intact\na lost\nb lost\n", wrong: "appears twice"},
		"an unknown state": {out: "a fine\nb lost\n", wrong: "must be intact or lost"},
		"a foreign part":   {out: "c lost\n", wrong: "unexpected line"},
		"a banner":         {out: "Welcome!\na intact\nb lost\n", wrong: "unexpected line"},
		"an endless line":  {out: strings.Repeat("x", 1<<20), wrong: "parse probe output"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			states, err := p.ParseProbe(strings.NewReader(tc.out))
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) || len(err.Error()) > 200 {
					t.Errorf("error %v is too long or does not contain %q", err, tc.wrong)
				}

				return
			}

			if diff := cmp.Diff([]string{"b"}, p.LostParts(states)); diff != "" || err != nil {
				t.Error(err, diff)
			}
		})
	}
}

func FuzzReadProbe(f *testing.F) {
	f.Add("a intact\nb lost\n")
	f.Add("a lost")
	f.Add("\n\x00 \xff")

	p, err := plan.New(newFilePart("a"), newFilePart("b"))
	if err != nil {
		f.Fatal(err)
	}

	f.Fuzz(func(t *testing.T, out string) {
		states, err := p.ParseProbe(strings.NewReader(out))
		if (err == nil) != (len(states) == 2) {
			t.Errorf("%d states and %v", len(states), err)
		}

		for label, state := range states {
			if state != plan.Intact && state != plan.Lost {
				t.Errorf("%s is %q", label, state)
			}
		}
	})
}
