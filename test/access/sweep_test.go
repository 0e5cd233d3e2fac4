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

// newSampleFixture returns a fixture with an orphaned object of each kind that adapters of the samples create.
func newSampleFixture(t *testing.T) (*fixture, []*unstructured.Unstructured) {
	t.Helper()

	w := newFixture(t)
	w.config.Kinds = readSampleKinds(t)

	var left []*unstructured.Unstructured
	for _, kind := range []string{"Namespace", "ResourceQuota", "ConfigMap", "Job", "ManifestWork"} {
		left = append(left, w.create(kind, w.adapter, newID()))
	}

	return w, left
}

// runAndPrint runs a sweep, and returns its report, error and log.
func (w *fixture) runAndPrint() string {
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

// readSampleKinds returns the kinds in the sample's configuration.
func readSampleKinds(t *testing.T) []string {
	t.Helper()

	var conf struct {
		Kinds []string `json:"kinds"`
	}

	if err := yaml.Unmarshal([]byte((&adapterRun{t: t}).readSample("sweep.yaml")), &conf); err != nil || len(conf.Kinds) == 0 {
		t.Fatal(conf, err)
	}

	return conf.Kinds
}

// TestSweepKindsAreThoseOfAdapters checks that sweep may delete, and looks for, the kinds that the sample adapters
// may create.
func TestSweepKindsAreThoseOfAdapters(t *testing.T) {
	t.Parallel()

	resources := func(a *accountRoles) []string {
		var out []string

		for _, rule := range a.cluster.Rules {
			out = append(out, strings.Join(slices.Concat(rule.Resources, rule.APIGroups), "."))
		}

		return out
	}

	var made []string

	for folder := range adapters() {
		made = append(made, resources(readRoles(t, folder+"/rbac.yaml"))...)
	}

	swept := resources(readRoles(t, "sweep-rbac.yaml"))

	slices.Sort(made)
	slices.Sort(swept)

	if diff := cmp.Diff(made, swept); diff != "" {
		t.Errorf("kinds that sweep may delete (-created +swept):\n%s", diff)
	}

	if kinds := readSampleKinds(t); len(kinds) != len(made) {
		t.Errorf("sweep.yaml has the kinds %v, but adapters create %v", kinds, made)
	}
}

// TestSweepRoleIsSufficient checks that sweep can delete orphans of every kind with its role, and gets no error
// Forbidden.
func TestSweepRoleIsSufficient(t *testing.T) {
	a := readRoles(t, "sweep-rbac.yaml")
	config := env.ServiceAccount(t, system, a.account)
	env.Apply(t, samples+"sweep-rbac.yaml")

	w, left := newSampleFixture(t)
	w.as = config

	output := w.runAndPrint()
	if slices.ContainsFunc(left, w.isLeft) || strings.Contains(strings.ToLower(output), "forbidden") || strings.Contains(output, "errors=[\"") {
		t.Errorf("objects are left, or sweep reported errors:\n%s", output)
	}

	// The role does not allow to list other kinds, especially Secrets.
	other, err := kubeclient.New(config, kubeclient.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	if err := other.List(t.Context(), &corev1.SecretList{}); !apierrors.IsForbidden(err) {
		t.Errorf("list Secrets: error %v, want Forbidden", err)
	}
}

// TestSweepRoleIsMinimal checks that without any single verb of its role sweep gets an error Forbidden, and
// reports verb and kind.
func TestSweepRoleIsMinimal(t *testing.T) { //nolint:tparallel // its subtests start together, after the other tests
	a := readRoles(t, "sweep-rbac.yaml")

	for _, lacks := range a.permissions() {
		t.Run(lacks.String(), func(t *testing.T) {
			t.Parallel()

			w, _ := newSampleFixture(t)
			w.as = a.createAccount(t, fmt.Sprintf("%s-%d", a.account, serial.Add(1)), lacks)

			if output := w.runAndPrint(); !strings.Contains(output, lacks.forbiddenMessage()) {
				t.Errorf("without %s, sweep does not report it: %s", lacks, output)
			}
		})
	}
}
