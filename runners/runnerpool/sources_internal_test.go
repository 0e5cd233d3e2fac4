// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package runnerpool

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/runners/demand"
)

func TestAssign(t *testing.T) {
	t.Parallel()

	const pack = v1alpha1.PlacementPack

	cases := map[string]struct {
		strategy string
		sources  []source
		n        int
		want     []string
	}{
		"none works":                         {"", []source{{name: "a", why: "broken"}}, 2, nil},
		"one by one where the fewest are":    {"", []source{{name: "a", machines: 2}, {name: "b"}}, 4, []string{"b", "b", "a", "b"}},
		"of equals the first":                {"", []source{{name: "b"}, {name: "a"}}, 1, []string{"b"}},
		"a full one comes last":              {"", []source{{name: "a", full: true}, {name: "b", machines: 9}}, 2, []string{"b", "b"}},
		"packed: the first":                  {pack, []source{{name: "a", machines: 9}, {name: "b"}}, 2, []string{"a", "a"}},
		"packed: the next when it is full":   {pack, []source{{name: "a", full: true}, {name: "b", machines: 9}}, 1, []string{"b"}},
		"packed: the first when all are":     {pack, []source{{name: "a", full: true}, {name: "b", full: true}}, 1, []string{"a"}},
		"one that doesn't work is left out":  {pack, []source{{name: "a", why: "broken"}, {name: "b"}}, 1, []string{"b"}},
		"nothing is wanted, nothing is done": {"", []source{{name: "a"}}, 0, nil},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			var got []string
			for _, chosen := range assign(test.strategy, test.sources, test.n) {
				got = append(got, chosen.name)
			}

			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("assign (-want +got):\n%s", diff)
			}
		})
	}
}

func TestOutdates(t *testing.T) {
	t.Parallel()

	deleted := &v1alpha1.HypervisorMachineTemplate{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &metav1.Time{Time: time.Unix(1, 0)}}}
	there := &v1alpha1.HypervisorMachineTemplate{}
	cases := map[string]struct {
		source source
		made   string
		want   bool
	}{
		"the same":                             {source{template: there, hash: "a"}, "a", false},
		"another":                              {source{template: there, hash: "a"}, "b", true},
		"made before machines remembered":      {source{template: there, hash: "a"}, "", false},
		"a template that can't replace it":     {source{template: there, hash: "a", why: "broken"}, "b", false},
		"a template that is not there":         {source{why: "missing"}, "b", false},
		"a template that is to go, unchanged":  {source{template: deleted, hash: "a", why: "deleted"}, "a", true},
		"one that is to go and never recalled": {source{template: deleted, hash: "a", why: "deleted"}, "", true},
	}
	for name, test := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()

			claim := &v1alpha1.MachineClaim{}
			claim.Annotations = map[string]string{v1alpha1.AnnotationTemplateHash: test.made}

			if got := test.source.outdates(claim); got != test.want {
				t.Errorf("outdates = %t", got)
			}
		})
	}
}

// What a machine is made from is its template and its workload, and not how webhooks are
// signed.
func TestHashOf(t *testing.T) {
	t.Parallel()

	hash := func(change func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.Workload)) string {
		template := &v1alpha1.HypervisorMachineTemplate{}
		template.Spec.Resources.CPU = 2
		workload := &v1alpha1.Workload{Type: v1alpha1.WorkloadGitHubActions, Webhook: &v1alpha1.Webhook{}}
		change(template, workload)

		out, err := hashOf(template, workload)
		if err != nil {
			t.Fatal(err)
		}

		return out
	}
	same := hash(func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.Workload) {})

	for name, test := range map[string]struct {
		change func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.Workload)
		same   bool
	}{
		"nothing": {func(*v1alpha1.HypervisorMachineTemplate, *v1alpha1.Workload) {}, true},
		"a label on it": {func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.Workload) {
			t.Labels = map[string]string{"a": "b"}
		}, true},
		"its status":      {func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.Workload) { t.Status.ObservedGeneration = 7 }, true},
		"webhooks":        {func(_ *v1alpha1.HypervisorMachineTemplate, w *v1alpha1.Workload) { w.Webhook = nil }, true},
		"its resources":   {func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.Workload) { t.Spec.Resources.CPU = 4 }, false},
		"the workload":    {func(_ *v1alpha1.HypervisorMachineTemplate, w *v1alpha1.Workload) { w.Type = v1alpha1.WorkloadGeneric }, false},
		"another's names": {func(t *v1alpha1.HypervisorMachineTemplate, _ *v1alpha1.Workload) { t.Name = "other" }, false},
	} {
		if got := hash(test.change) == same; got != test.same {
			t.Errorf("%s changed: the hash is the same: %t", name, got)
		}
	}
}

func TestStartupsAreRemembered(t *testing.T) {
	t.Parallel()

	var memory startups

	birth := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	machine := func(uid string, times v1alpha1.MachineTimes) v1alpha1.MachineClaim {
		return v1alpha1.MachineClaim{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(uid), CreationTimestamp: metav1.NewTime(birth)},
			Status:     v1alpha1.MachineClaimStatus{Times: &times},
		}
	}

	if got := memory.median(); got != demand.DefaultStartup {
		t.Errorf("of none: %s", got)
	}

	claims := []v1alpha1.MachineClaim{
		machine("a", v1alpha1.MachineTimes{Ready: micro(birth.Add(20 * time.Second))}),
		machine("b", v1alpha1.MachineTimes{}),
		// On standby for an hour, then started within ten seconds.
		machine("c", v1alpha1.MachineTimes{Activated: micro(birth.Add(time.Hour)), Ready: micro(birth.Add(time.Hour + 10*time.Second))}),
		machine("d", v1alpha1.MachineTimes{Ready: micro(birth.Add(90 * time.Second))}),
	}

	for range 3 { // each counts once
		memory.note(claims)
	}

	if got := memory.median(); got != 20*time.Second {
		t.Errorf("median = %s, want 20s", got)
	}

	memory.note(nil)

	if got := memory.median(); got != 20*time.Second {
		t.Errorf("median = %s when the machines are gone, want 20s", got)
	}
}
