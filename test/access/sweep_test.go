// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"
)

// leavings is a world with an object of each kind that adapters of the samples leave behind.
func leavings(t *testing.T) (*world, []*unstructured.Unstructured) {
	t.Helper()

	w := newWorld(t)
	w.config.Kinds = sampleKinds(t)

	var left []*unstructured.Unstructured
	for _, kind := range []string{"Namespace", "ResourceQuota", "ConfigMap", "Job", "ManifestWork"} {
		left = append(left, w.make(kind, w.adapter, newID()))
	}

	return w, left
}

// said sweeps, and gives all that was said.
func (w *world) said() string {
	w.t.Helper()

	report, err := w.run()
	if err != nil {
		return err.Error() + w.log.String()
	}

	text, err := json.Marshal(report)
	if err != nil {
		w.t.Fatal(err)
	}

	return strings.ReplaceAll(string(text)+w.log.String(), `\"`, `"`)
}

// sampleKinds are the kinds of the sample's configuration.
func sampleKinds(t *testing.T) []string {
	t.Helper()

	var conf struct {
		Kinds []string `json:"kinds"`
	}

	if err := yaml.Unmarshal([]byte((&life{t: t}).read("sweep.yaml")), &conf); err != nil || len(conf.Kinds) == 0 {
		t.Fatal(conf, err)
	}

	return conf.Kinds
}

// What the adapters of the samples may make, sweep may remove, and looks for.
func TestSweepIsForWhatAdaptersMake(t *testing.T) {
	t.Parallel()

	resources := func(a *access) []string {
		var out []string

		for _, rule := range a.cluster.Rules {
			out = append(out, strings.Join(slices.Concat(rule.Resources, rule.APIGroups), "."))
		}

		return out
	}

	var made []string

	for folder := range adapters() {
		made = append(made, resources(read(t, folder+"/rbac.yaml"))...)
	}

	swept := resources(read(t, "sweep-rbac.yaml"))

	slices.Sort(made)
	slices.Sort(swept)

	if diff := cmp.Diff(made, swept); diff != "" {
		t.Errorf("what sweep may remove (-made +swept):\n%s", diff)
	}

	if kinds := sampleKinds(t); len(kinds) != len(made) {
		t.Errorf("sweep.yaml names %v, and %v are made", kinds, made)
	}
}

// Under its role sweep removes what is left of every kind, and is refused nothing.
func TestSweepNeedsNoMore(t *testing.T) {
	a := read(t, "sweep-rbac.yaml")
	config := env.ServiceAccount(t, home, a.account)
	env.Apply(t, samples+"sweep-rbac.yaml")

	w, left := leavings(t)
	w.as = config

	said := w.said()
	if slices.ContainsFunc(left, w.left) || strings.Contains(strings.ToLower(said), "forbidden") || strings.Contains(said, "errors=[\"") {
		t.Errorf("objects are left; it said:\n%s", said)
	}

	// What it may not list, it does not: Secrets least of all.
	other, err := kubeclient.New(config, kubeclient.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	if err := other.List(t.Context(), &corev1.SecretList{}); !apierrors.IsForbidden(err) {
		t.Errorf("it may list Secrets: %v", err)
	}
}

// Without any one verb of its role sweep is refused something, and says the verb and the
// kind in its report.
func TestSweepNeedsNoLess(t *testing.T) { //nolint:tparallel // its subtests start together, after the others
	a := read(t, "sweep-rbac.yaml")

	for _, lacks := range a.grants() {
		t.Run(lacks.String(), func(t *testing.T) {
			t.Parallel()

			w, _ := leavings(t)
			w.as = a.with(t, fmt.Sprintf("%s-%d", a.account, serial.Add(1)), lacks)

			if said := w.said(); !strings.Contains(said, lacks.refusal()) {
				t.Errorf("without %s it says nothing of that: %s", lacks, said)
			}
		})
	}
}
