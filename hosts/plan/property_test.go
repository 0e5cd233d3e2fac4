// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plan_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/property"
)

// newDraft returns a plan of three parts, of which one depends on a per-host field.
func newDraft(cfg config) *plan.Draft {
	d := &plan.Draft{}
	text := func(label, text string) plan.Part {
		return changePart(newFilePart(label), func(p *plan.Part) { p.Content = plan.NewText(text) })
	}

	var err error
	if strings.HasPrefix(cfg.Common, "bad") {
		err = errors.New(cfg.Common)
	}

	d.Add(text("common", cfg.Common), err)
	d.Add(text("lists", fmt.Sprintf("%q", cfg.Lists)), nil)
	d.Add(text("own", cfg.Own+cfg.Common), nil)

	return d
}

func hash(cfg config) string { return plan.HostConfigHash(cfg, newDraft) }

func words() gopter.Gen {
	return gen.OneGenOf(gen.AnyString(), gen.AlphaString().Map(func(s string) string { return "bad " + s }))
}

func TestHashProperties(t *testing.T) {
	t.Parallel()

	property.Check(t, "the hash does not depend on the host", property.Options{}, prop.ForAll(
		func(common string, own, lists []string) bool {
			return hash(config{Common: common, Own: own[0], Lists: lists}) == hash(config{Common: common, Own: own[1], Lists: lists})
		}, words(), gen.SliceOfN(2, gen.AnyString()), gen.SliceOf(gen.AnyString())))

	property.Check(t, "the hash is the same for the same fleet, and only then, errors and all", property.Options{}, prop.ForAll(
		func(common []string, lists [][]string) bool {
			one, other := config{Common: common[0], Lists: lists[0]}, config{Common: common[1], Lists: lists[1]}
			same := common[0] == common[1] && slices.Equal(lists[0], lists[1])

			first, again := hash(one), hash(one)

			return (first == hash(other)) == same && first == again && len(first) == 64
		}, gen.SliceOfN(2, words()), gen.SliceOfN(2, gen.SliceOf(gen.AnyString()))))
}

// TestCommentsAreNotRendered checks that scripts with different comments are the same, and that text within quotes
// and here-documents is kept.
func TestCommentsAreNotRendered(t *testing.T) {
	t.Parallel()

	const script = "main() {\n\techo 'a\n# b'\n}"

	for name, tc := range map[string]struct {
		body string
		same bool
	}{
		"comment before":         {"# It's old.\n\n" + script, true},
		"comment inside":         {strings.Replace(script, "\techo", "\n\t# It's new.\n\techo", 1), true},
		"text within quotes":     {strings.Replace(script, "# b", "# c", 1), false},
		"text in double quotes":  {strings.ReplaceAll(script, "'", `"`), false},
		"text in here-document":  {script + "\ncat <<END\n# d\nEND", false},
		"after an escaped quote": {strings.Replace(script, "echo", "echo \\'\n# It's new.\n\techo", 1), false},
	} {
		got := plan.Render(tc.body)
		if (got == plan.Render(script)) != tc.same {
			t.Errorf("%s: the same script: %v, want %v:\n%s", name, !tc.same, tc.same, got)
		}

		for _, kept := range []string{"# c", "# d"} {
			if strings.Contains(tc.body, kept) && !strings.Contains(got, kept) {
				t.Errorf("%s: %q is missing:\n%s", name, kept, got)
			}
		}

		if strings.Contains(got, "new") || strings.Contains(got, "old") {
			t.Errorf("%s: a comment is left:\n%s", name, got)
		}
	}
}

// TestScriptsKeepTheirCode checks that bash reads the same functions from each script with and without its comments.
func TestScriptsKeepTheirCode(t *testing.T) {
	t.Parallel()

	files, err := filepath.Glob("*/scripts/*.sh")
	if err != nil || len(files) == 0 {
		t.Fatalf("found %d scripts: %v", len(files), err)
	}

	declare := func(script string) string {
		cmd := exec.CommandContext(t.Context(), "bash", "-s")
		script = strings.Replace(script, "set -euo pipefail\n", "", 1) // the variables of the script are not set
		cmd.Stdin = strings.NewReader(strings.TrimSuffix(script, "main; exit 0\n") + "\ndeclare -f\n")

		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s\n%s", err, out, script)
		}

		return string(out)
	}

	for _, file := range files {
		body, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}

		rendered := plan.Render(string(body))
		header, _, _ := strings.Cut(rendered, "\n\n")

		if got, want := declare(rendered), declare(header+"\n"+string(body)); got != want {
			t.Errorf("%s: bash reads other functions without the comments:\n%s\n\nwith them:\n%s", file, got, want)
		}

		if comment := regexp.MustCompile(`(?m)^\s*#[^!].*`).FindString(rendered); comment != "" {
			t.Errorf("%s has a comment on hosts: %s", file, comment)
		}
	}
}

// A badly quoted text could become part of the script.
func TestQuotedTextsStayOneWord(t *testing.T) {
	t.Parallel()

	property.Check(t, "bash prints a variable unchanged", property.Options{}, prop.ForAll(
		func(text string) string {
			text = strings.ReplaceAll(text, "\x00", "")

			cmd := exec.CommandContext(t.Context(), "bash", "-s")
			cmd.Stdin = strings.NewReader(plan.Render("main() { printf %s \"$TEXT\"; }", plan.Var{Name: "TEXT", Value: text}))

			if out, err := cmd.Output(); err != nil || string(out) != text {
				return fmt.Sprintf("%q came out as %q: %v", text, out, err)
			}

			return ""
		}, gen.OneGenOf(gen.AnyString(), gen.RegexMatch("['\"$`;\\\\ \\n!]{0,12}"))))
}

// newParts generates parts from numbers: the schedule, the text and the dependents of each part.
func newParts(numbers []int) []plan.Part {
	var parts []plan.Part

	for i, n := range numbers {
		part := changePart(newFilePart(fmt.Sprintf("part-%d", i)), func(p *plan.Part) { p.Content = plan.NewText(strconv.Itoa(n % 3)) })
		if n%5 == 0 {
			part.Schedule = plan.FirstBoot
		}

		parts = append(parts, part)
	}

	for i := range parts {
		for j := i + 1; j < len(parts); j++ {
			if parts[j].Schedule == plan.Always && numbers[i]%(j+1) == 1 {
				parts[i].Reapplies = append(parts[i].Reapplies, parts[j].Label)
			}
		}
	}

	return parts
}

// findViolation returns a description of a violated invariant of the plan, or an empty string.
func findViolation(numbers []int) string {
	parts := newParts(numbers)

	p, err := plan.New(parts...)
	if err != nil {
		return err.Error()
	}

	for i, part := range parts {
		steps := listLabels(p.DriftSteps(part.Label))
		if slices.Contains(steps, part.Label) != part.IsHashed() {
			return part.Label + " is applied or hashed alone"
		}

		for _, follower := range part.Reapplies {
			if part.IsHashed() && !slices.Contains(steps, follower) {
				return follower + " does not follow " + part.Label
			}
		}

		changed := slices.Clone(parts)
		changed[i].Apply += "#"

		q, err := plan.New(changed...)
		if err != nil {
			return err.Error()
		}

		if want := part.IsHashed(); (q.Hash() != p.Hash()) != want {
			return "a change of " + part.Label + " and the hash disagree"
		}

		if changes := plan.Diff(q.Digests(), p.Digests()); part.IsHashed() &&
			!slices.Equal(changes, []plan.Change{{Label: part.Label, Kind: plan.Changed}}) {
			return fmt.Sprintf("a change of %s is reported as %v", part.Label, changes)
		}
	}

	return ""
}

func TestHashCoversAppliedParts(t *testing.T) {
	t.Parallel()

	property.Check(t, "the invariants hold for any plan", property.Options{}, prop.ForAll(findViolation, gen.SliceOfN(7, gen.IntRange(0, 1000))))
}

func TestProbeScriptReportsEachPart(t *testing.T) {
	t.Parallel()

	property.Check(t, "a part is lost if one of its commands fails", property.Options{}, prop.ForAll(
		func(fails []bool) string {
			var (
				parts []plan.Part
				want  []string
			)

			for i, f := range fails {
				part := changePart(newFilePart(fmt.Sprintf("part-%d", i)), func(p *plan.Part) { p.Probe = "true\necho noise\ncat" })
				if f {
					// The last command succeeds, but the command before it fails.
					part.Probe = "test a = b\ntrue"
					want = append(want, part.Label)
				}

				parts = append(parts, part)
			}

			q, err := plan.New(parts...)
			if err != nil {
				return err.Error()
			}

			cmd := exec.CommandContext(t.Context(), "bash", "-s")
			cmd.Stdin = strings.NewReader(q.ProbeScript())

			out, err := cmd.Output()
			if err != nil {
				return err.Error()
			}

			states, err := q.ParseProbe(strings.NewReader(string(out)))
			if err != nil || !slices.Equal(q.LostParts(states), want) {
				return fmt.Sprintf("%v: lost %v, want %v\n%s", err, q.LostParts(states), want, out)
			}

			return ""
		}, gen.SliceOfN(4, gen.Bool())))
}
