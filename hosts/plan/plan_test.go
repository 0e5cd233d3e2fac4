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

func file(label string, reapplies ...string) plan.Part {
	return plan.Part{
		Label: label, Kind: plan.File, Schedule: plan.Always, Path: "/etc/" + label, Mode: 0o644, Owner: "root:root",
		Content: plan.NewText(label), Apply: "cat >/etc/" + label, Probe: "test -e /etc/" + label, Reapplies: reapplies,
	}
}

func with(part plan.Part, change func(*plan.Part)) plan.Part {
	change(&part)

	return part
}

func labels(parts []plan.Part) []string {
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

func TestNewRefuses(t *testing.T) {
	t.Parallel()

	cases := map[string]struct {
		parts []plan.Part
		want  string
	}{
		"label with a space":   {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Label = "a b" })}, "words of a-z"},
		"two of a label":       {[]plan.Part{file("a"), file("a")}, "used twice"},
		"unknown kind":         {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Kind = "link" })}, "file, unit, binary or script"},
		"no pass":              {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Schedule = "" })}, "always or first-boot"},
		"nothing that applies": {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Apply = "" })}, "Apply script is missing"},
		"no probe":             {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Probe = "" })}, "probe is missing"},
		"content and a secret": {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Secret = log.NewSecret("s") })}, "content and a secret"},
		"relative path":        {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Path = "etc/a" })}, "absolute"},
		"path that climbs":     {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Path = "/etc/../a" })}, "without . and .."},
		"all may write":        {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Mode = 0o666 })}, "only the owner may have write permission"},
		"no mode":              {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Mode = 0 })}, "mode 0"},
		"owner without group":  {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Owner = "root" })}, "user:group"},
		"script with a path":   {[]plan.Part{with(file("a"), func(p *plan.Part) { p.Kind = plan.Script })}, "leaves no file"},
		"reapplies an earlier": {[]plan.Part{file("a"), file("b", "a")}, "not a later part"},
		"reapplies on first boot": {
			[]plan.Part{file("a", "b"), with(file("b"), func(p *plan.Part) { p.Schedule = plan.FirstBoot })},
			"not a later part that is always applied",
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			p, err := plan.New(tc.parts...)
			if err == nil || !strings.Contains(err.Error(), tc.want) || len(p.Parts()) != 0 {
				t.Errorf("New() = %v, %v: want an error that says %q", labels(p.Parts()), err, tc.want)
			}
		})
	}
}

func TestDriftSteps(t *testing.T) {
	t.Parallel()

	once := with(file("once"), func(p *plan.Part) { p.Schedule = plan.FirstBoot })
	p := mustNew(t, once, file("program", "job"), file("unit", "job"), file("job", "network"), file("other"), file("network"))

	cases := map[string]struct {
		drifted, want []string
	}{
		"nothing":                          {nil, nil},
		"alone":                            {[]string{"other"}, []string{"other"}},
		"with what has to follow":          {[]string{"unit"}, []string{"unit", "job", "network"}},
		"in the plan's order, each once":   {[]string{"unit", "program"}, []string{"program", "unit", "job", "network"}},
		"never what is for the first boot": {[]string{"once", "other"}, []string{"other"}},
		"what the plan does not have":      {[]string{"gone"}, nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			if diff := cmp.Diff(tc.want, labels(p.DriftSteps(tc.drifted...))); diff != "" {
				t.Error(diff)
			}
		})
	}

	if diff := cmp.Diff(labels(p.Parts()), labels(p.FirstBootSteps())); diff != "" {
		t.Error(diff)
	}
}

func TestDiffNamesParts(t *testing.T) {
	t.Parallel()

	before := mustNew(t, file("a"), file("b"), file("c")).Digests()
	after := mustNew(t, file("d"), file("a"), with(file("b"), func(p *plan.Part) { p.Mode = 0o600 })).Digests()
	want := []plan.Change{{Label: "d", Kind: plan.Added}, {Label: "b", Kind: plan.Changed}, {Label: "c", Kind: plan.Removed}}

	if diff := cmp.Diff(want, plan.Diff(after, before)); diff != "" {
		t.Error(diff)
	}
}

func TestProbeAndSecretAreInNoDigest(t *testing.T) {
	t.Parallel()

	bare := with(file("a"), func(p *plan.Part) { p.Content = plan.Content{} })
	for name, change := range map[string]func(*plan.Part){
		"probe":  func(p *plan.Part) { p.Probe = "true" },
		"secret": func(p *plan.Part) { p.Secret = log.NewSecret("s") },
	} {
		if with(bare, change).Digest() != bare.Digest() {
			t.Errorf("another %s gives another digest", name)
		}
	}
}

type config struct {
	Common string   `host:"fleet"`
	Lists  []string `host:"fleet"`
	Own    string   `host:"per-host"`
}

func TestFleetZeroesWhatBelongsToOneHost(t *testing.T) {
	t.Parallel()

	got := plan.ClearPerHost(config{Common: "a", Lists: []string{"b"}, Own: "c"})
	if diff := cmp.Diff(config{Common: "a", Lists: []string{"b"}}, got); diff != "" {
		t.Error(diff)
	}
}

func TestCheckTagsFinds(t *testing.T) {
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
		t.Error("a field with both is not found")
	}
}

func TestReadProbe(t *testing.T) {
	t.Parallel()

	p := mustNew(t, file("a"), file("b"))
	cases := map[string]struct{ out, wrong string }{
		"whole":           {out: "a intact\nb lost\n"},
		"cut short":       {out: "a intact\n", wrong: "part b is missing"},
		"nothing":         {wrong: "part a is missing"},
		"twice":           {out: "a intact\na lost\nb lost\n", wrong: "appears twice"},
		"a state of none": {out: "a fine\nb lost\n", wrong: "must be intact or lost"},
		"a foreign part":  {out: "c lost\n", wrong: "unexpected line"},
		"a banner":        {out: "Welcome!\na intact\nb lost\n", wrong: "unexpected line"},
		"an endless line": {out: strings.Repeat("x", 1<<20), wrong: "parse probe output"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			states, err := p.ParseProbe(strings.NewReader(tc.out))
			if tc.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), tc.wrong) || len(err.Error()) > 200 {
					t.Errorf("error %v does not say %q in short", err, tc.wrong)
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

	p, err := plan.New(file("a"), file("b"))
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
