// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package access_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	kubeclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/hyperfleet/hyperfleet/api/config/platform"
	"github.com/hyperfleet/hyperfleet/platform/client"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/platform/sweep"
	"github.com/hyperfleet/hyperfleet/test/capture"
	"github.com/hyperfleet/hyperfleet/test/fleetapi"
)

// swept is one sweep of objects that were left behind, one of each kind that it is for.
type swept struct {
	t *testing.T
	// adapter is whose objects they are: no other test's.
	adapter, namespace string
	keys               *stamp.Keys
	left               []*unstructured.Unstructured
	log                *capture.Buffer
}

// leave makes an object that an adapter would have made for a resource that is gone.
func (s *swept) leave(version, kind string, spec map[string]any) {
	s.t.Helper()

	object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": version, "kind": kind}}
	object.SetName(s.adapter)

	if kind != "Namespace" {
		object.SetNamespace(s.namespace)
	}

	if spec != nil {
		object.Object["spec"] = spec
	}

	mark := stamp.Mark{ResourceID: uuid.Must(uuid.NewV7()).String(), ResourceName: "thing", Generation: 1}
	if err := stamp.New(s.adapter, s.keys).Stamp(object, mark); err != nil {
		s.t.Fatal(err)
	}

	if err := env.Client.Create(s.t.Context(), object); err != nil {
		s.t.Fatal(err)
	}

	s.left = append(s.left, object)
}

func newSwept(t *testing.T) *swept {
	t.Helper()

	keys, err := stamp.ParseKeys([]byte(key))
	if err != nil {
		t.Fatal(err)
	}

	s := &swept{
		t: t, adapter: fmt.Sprintf("swept-%d", serial.Add(1)), namespace: env.Namespace(t), keys: keys, log: &capture.Buffer{},
	}

	pod := map[string]any{"restartPolicy": "Never", "containers": []any{map[string]any{"name": "a", "image": "a"}}}
	s.leave("v1", "Namespace", nil)
	s.leave("v1", "ResourceQuota", map[string]any{"hard": map[string]any{"pods": "10"}})
	s.leave("v1", "ConfigMap", nil)
	s.leave("batch/v1", "Job", map[string]any{"template": map[string]any{"spec": pod}})
	s.leave("work.open-cluster-management.io/v1", "ManifestWork", map[string]any{})

	return s
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

// run sweeps, and gives all that was said.
func (s *swept) run(url string, config *rest.Config) string {
	s.t.Helper()

	api, err := client.New(platform.APIClient{BaseURL: url}, client.Options{})
	if err != nil {
		s.t.Fatal(err)
	}

	conf := sweep.Defaults()
	conf.Delete, conf.MinAge, conf.MaxShare = true, 0, 1
	conf.Adapters, conf.Kinds = []string{s.adapter}, sampleKinds(s.t)

	report, err := sweep.Run(s.t.Context(), sweep.Options{
		Config: conf, Kube: config, API: api, Keys: s.keys, Log: slog.New(slog.NewTextHandler(s.log, nil)),
	})
	if err != nil {
		return err.Error() + s.log.String()
	}

	text, err := json.Marshal(report)
	if err != nil {
		s.t.Fatal(err)
	}

	return strings.ReplaceAll(string(text)+s.log.String(), `\"`, `"`)
}

// there says how many of the objects are left.
func (s *swept) there() int {
	s.t.Helper()

	count := 0

	for _, object := range s.left {
		now := object.DeepCopy()

		err := env.Client.Get(s.t.Context(), kubeclient.ObjectKeyFromObject(object), now)
		if kubeclient.IgnoreNotFound(err) != nil {
			s.t.Fatal(err)
		}

		if err == nil && now.GetDeletionTimestamp() == nil {
			count++
		}
	}

	return count
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

	_, url := fleetapi.Serve(t, database, platform.Entity{Kind: "Cluster", Plural: "clusters"})
	s := newSwept(t)
	said := s.run(url, config)

	if s.there() != 0 || strings.Contains(strings.ToLower(said), "forbidden") || strings.Contains(said, "errors=[\"") {
		t.Errorf("%d of %d objects are left; it said:\n%s", s.there(), len(s.left), said)
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
func TestSweepNeedsNoLess(t *testing.T) {
	a := read(t, "sweep-rbac.yaml")
	_, url := fleetapi.Serve(t, database, platform.Entity{Kind: "Cluster", Plural: "clusters"})

	for _, lacks := range a.grants() {
		t.Run(lacks.String(), func(t *testing.T) {
			s := newSwept(t)
			config := a.with(t, fmt.Sprintf("%s-%d", a.account, serial.Add(1)), lacks)

			said := s.run(url, config)
			if !strings.Contains(said, lacks.refusal()) {
				t.Errorf("without %s it says nothing of that: %s", lacks, said)
			}
		})
	}
}
