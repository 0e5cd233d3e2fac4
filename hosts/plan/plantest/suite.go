// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package plantest

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hyperfleet/hyperfleet/hosts/plan"
	"github.com/hyperfleet/hyperfleet/kit/log"
)

// Kind is a kind of host under test.
type Kind[C any] struct {
	// One and Other are complete, valid configurations that differ in every field.
	One, Other C
	Draft      func(C) *plan.Draft
	Render     func(C) (plan.Plan, error)
	Hash       func(C) string
	// Parts lists the expected parts of One in order, independently of the code: one line per part,
	// "LABEL KIND SCHEDULE".
	Parts []string
}

// Run runs all tests of a kind.
func Run[C any](t *testing.T, k Kind[C]) {
	t.Helper()

	t.Run("each field belongs to one host or to all", k.testTags)
	t.Run("the two configurations differ in each field", k.testConfigsDiffer)
	t.Run("hash is stable", k.testHashStable)
	t.Run("hash and fields", k.testFields)
	t.Run("hash is of what is pushed", k.testHashOfPlan)
	t.Run("hashed parts and applied parts are the same", k.testParts)
	t.Run("dropping any part fails", k.testPartMutations)
	t.Run("no secret leaves but on standard input", k.testSecrets)
	t.Run("golden", k.testGolden)
	t.Run("scripts", k.testScripts)
}

func (k Kind[C]) plan(t *testing.T, cfg C) plan.Plan {
	t.Helper()

	p, err := k.Render(cfg)
	if err != nil {
		t.Fatal(err)
	}

	return p
}

func (k Kind[C]) testTags(t *testing.T) {
	if err := plan.ValidateTags[C](); err != nil {
		t.Error(err)
	}
}

func (k Kind[C]) testConfigsDiffer(t *testing.T) {
	one, other := reflect.ValueOf(k.One), reflect.ValueOf(k.Other)
	for i := range one.NumField() {
		if reflect.DeepEqual(one.Field(i).Interface(), other.Field(i).Interface()) {
			t.Errorf("field %s is the same in both: the tests below could not see it", one.Type().Field(i).Name)
		}
	}
}

func (k Kind[C]) testHashStable(t *testing.T) {
	want := k.Hash(k.One)

	for range 20 {
		if got := k.Hash(k.One); got != want || want == "" {
			t.Fatalf("hash is %q, and then %q", want, got)
		}
	}
}

// testFields changes one field at a time. A per-host field must not change the hash. A fleet field must
// change it, except for fields that only affect new hosts.
func (k Kind[C]) testFields(t *testing.T) {
	fields := reflect.TypeFor[C]()
	for i := range fields.NumField() {
		field := fields.Field(i)
		cfg := k.One
		reflect.ValueOf(&cfg).Elem().Field(i).Set(reflect.ValueOf(k.Other).Field(i))

		want := field.Tag.Get("host") == "fleet" && field.Tag.Get("use") != "first-boot"
		if got := k.Hash(cfg) != k.Hash(k.One); got != want {
			t.Errorf("%s changed: the hash changed too: %v, want %v", field.Name, got, want)
		}

		// Every field must affect what is pushed to a new host.
		isPushed := joinInputs(k.plan(t, cfg).FirstBootSteps()) != joinInputs(k.plan(t, k.One).FirstBootSteps())
		if want := field.Tag.Get("use") != "connection"; isPushed != want {
			t.Errorf("%s changed: what is pushed to a new host changed too: %v, want %v", field.Name, isPushed, want)
		}
	}
}

// joinInputs returns the standard input of the scripts that apply the parts, one after the other.
func joinInputs(parts []plan.Part) string {
	var b strings.Builder
	for _, part := range parts {
		b.WriteString(part.Input())
	}

	return b.String()
}

// testHashOfPlan checks that Hash returns the hash of the plan that Render returns, without the values of one
// host. The values of one host must not add or remove parts.
func (k Kind[C]) testHashOfPlan(t *testing.T) {
	p, err := k.Draft(plan.ClearPerHost(k.One)).Plan()
	if err != nil {
		t.Fatalf("a plan without the values of one host cannot be rendered: %v", err)
	}

	if p.Hash() != k.Hash(k.One) {
		t.Error("the hash is not the hash of the plan")
	}

	if diff := gocmp.Diff(list(p), list(k.plan(t, k.One))); diff != "" {
		t.Errorf("a host has other parts than the fleet (-fleet +host):\n%s", diff)
	}
}

func list(p plan.Plan) []string {
	var out []string
	for _, part := range p.Parts() {
		out = append(out, fmt.Sprintf("%s %s %s", part.Label, part.Kind, part.Schedule))
	}

	return out
}

// checkParts returns an error if the plan's parts differ from the list, or if the hashed parts
// differ from those that a drifted host gets.
func (k Kind[C]) checkParts(p plan.Plan) error {
	if diff := gocmp.Diff(k.Parts, list(p)); diff != "" {
		return fmt.Errorf("parts (-want +got):\n%s", diff)
	}

	return checkApplied(p)
}

// checkApplied returns an error if the hashed parts differ from those that a drifted host gets.
func checkApplied(p plan.Plan) error {
	var (
		labels  []string
		applied []plan.Digest
	)

	for _, part := range p.Parts() {
		labels = append(labels, part.Label)
	}

	for _, part := range p.DriftSteps(labels...) {
		applied = append(applied, part.Digest())
	}

	if diff := gocmp.Diff(p.Digests(), applied); diff != "" {
		return fmt.Errorf("hashed and applied parts (-hashed +applied):\n%s", diff)
	}

	return nil
}

func (k Kind[C]) testParts(t *testing.T) {
	if err := k.checkParts(k.plan(t, k.One)); err != nil {
		t.Error(err)
	}

	for name, cfg := range map[string]C{"one": k.One, "other": k.Other} {
		p := k.plan(t, cfg)
		if err := checkApplied(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}

		for _, part := range p.Parts() {
			applied := p.DriftSteps(part.Label)
			isApplied := slices.ContainsFunc(applied, func(other plan.Part) bool { return other.Label == part.Label })

			if isApplied != part.IsHashed() {
				t.Errorf("%s: part %s has drifted and is applied: %v; it is hashed: %v", name, part.Label, isApplied, part.IsHashed())
			}
		}
	}
}

// testPartMutations makes sure that testParts can fail: if a part is missing, if a part has another
// schedule, and if a part has one more or one changed byte.
func (k Kind[C]) testPartMutations(t *testing.T) {
	p := k.plan(t, k.One)

	for i, part := range p.Parts() {
		for name, mutate := range map[string]func([]plan.Part) []plan.Part{
			"dropped": func(parts []plan.Part) []plan.Part { return slices.Delete(parts, i, i+1) },
			"on another pass": func(parts []plan.Part) []plan.Part {
				parts[i].Schedule = cmp.Or(map[plan.Schedule]plan.Schedule{plan.Always: plan.FirstBoot}[part.Schedule], plan.Always)
				parts[i].Probe = "true"

				return parts
			},
		} {
			mutant, err := plan.New(mutate(p.Parts())...)
			if err == nil && k.checkParts(mutant) == nil {
				t.Errorf("%s %s: nothing noticed", part.Label, name)
			}

			if err == nil && (part.IsHashed() || name != "dropped") && mutant.Hash() == p.Hash() {
				t.Errorf("%s %s: the hash is the same", part.Label, name)
			}
		}

		for name, mutant := range map[string]plan.Part{
			"script": with(part, func(m *plan.Part) { m.Apply += "#" }),
			"text":   with(part, func(m *plan.Part) { m.Content = plan.NewText(m.Content.String() + "#") }),
			"mode":   with(part, func(m *plan.Part) { m.Mode ^= 0o100 }),
			"owner":  with(part, func(m *plan.Part) { m.Owner += "x" }),
			"path":   with(part, func(m *plan.Part) { m.Path += "x" }),
		} {
			if mutant.Digest() == part.Digest() {
				t.Errorf("%s: another %s, and the digest is the same", part.Label, name)
			}
		}
	}
}

func with(part plan.Part, change func(*plan.Part)) plan.Part {
	change(&part)

	return part
}

// testSecrets looks for every secret of the configuration in everything except the input of scripts.
func (k Kind[C]) testSecrets(t *testing.T) {
	p := k.plan(t, k.One)
	v := reflect.ValueOf(k.One)

	var all strings.Builder

	fmt.Fprintf(&all, "%+v %#v %v %s", p.Parts(), p.Parts(), p.Digests(), p.ProbeScript())

	for _, part := range p.Parts() {
		all.WriteString(part.Apply + part.Content.String() + part.Path)
	}

	for i := range v.NumField() {
		secret, ok := v.Field(i).Interface().(log.Secret)
		if !ok {
			continue
		}

		if strings.Contains(all.String(), secret.Reveal()) {
			t.Errorf("%s is in a part", v.Type().Field(i).Name)
		}

		sent := strings.Count(joinInputs(p.FirstBootSteps()), secret.Reveal())
		if want := v.Type().Field(i).Tag.Get("use") != "connection"; (sent == 1) != want {
			t.Errorf("%s is sent %d times", v.Type().Field(i).Name, sent)
		}
	}
}
