// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
)

// inNamespace makes a namespace, two objects in it, and one of a kind that lives in none,
// whatever namespace its discovery names.
const inNamespace = `
  - name: space
    discovery: {by_name: "{{ .ns }}-new"}
    manifest:
      apiVersion: v1
      kind: Namespace
      metadata: {name: "{{ .ns }}-new"}
  - name: named
    discovery: {namespace: "{{ .ns }}-new", by_name: named}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: named, namespace: "{{ .ns }}-new"}
      data: {value: "{{ .value }}"}
  - name: labelled
    discovery: {namespace: "{{ .ns }}-new", by_selectors: {label_selector: {app: labelled}}}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: labelled, namespace: "{{ .ns }}-new", labels: {app: labelled}}
  - name: anywhere
    discovery: {namespace: "{{ .ns }}-new", by_name: "{{ .ns }}-anywhere"}
    manifest:
      apiVersion: scheduling.k8s.io/v1
      kind: PriorityClass
      metadata: {name: "{{ .ns }}-anywhere"}
      value: 1
`

// scoped is a client of the cluster that writes down what is read through it, and lets
// somebody else be quicker.
type scoped struct {
	transport.Client

	reads []string
	// meanwhile, if there, runs once after the first create.
	meanwhile func()
}

func newScoped() *scoped { return &scoped{Client: clients[transport.Kubernetes]} }

func (s *scoped) Find(ctx context.Context, query transport.Query, read transport.Read) ([]*unstructured.Unstructured, error) {
	verb := "list "
	if query.Name != "" {
		verb = "get "
	}

	s.reads = append(s.reads, verb+query.GVK.Kind)

	return s.Client.Find(ctx, query, read)
}

func (s *scoped) Create(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	made, err := s.Client.Create(ctx, o)

	if meanwhile := s.meanwhile; meanwhile != nil {
		s.meanwhile = nil

		meanwhile()
	}

	return made, err
}

func (s *scoped) wantReads(t *testing.T, want ...string) {
	t.Helper()

	if !slices.Equal(s.reads, want) {
		t.Errorf("reads: %v, want %v", s.reads, want)
	}

	s.reads = nil
}

// What is in a namespace that is not there is not asked for; where the namespace is there,
// it is.
func TestNothingIsReadInANamespaceThatIsNotThere(t *testing.T) {
	t.Parallel()

	f, s := newFleet(t, inNamespace), newScoped()
	f.clients = map[string]transport.Client{transport.Kubernetes: s}

	f.want(event{generation: 1, value: "a"}, "create/Absent", "create/Absent", "create/Absent", "create/Absent")
	s.wantReads(t, "get Namespace", "get PriorityClass")

	f.want(event{generation: 1, value: "a"}, "none/GenerationUnchanged", "none/GenerationUnchanged",
		"none/GenerationUnchanged", "none/GenerationUnchanged")
	s.wantReads(t, "get Namespace", "get ConfigMap", "list ConfigMap", "get PriorityClass")
}

// An object that somebody makes in the namespace as soon as it is there is found after all,
// and left alone.
func TestSomebodyElseIsQuickerInANewNamespace(t *testing.T) {
	t.Parallel()

	f, s := newFleet(t, inNamespace), newScoped()
	f.clients = map[string]transport.Client{transport.Kubernetes: s}
	s.meanwhile = func() {
		theirs := f.object("v1", "ConfigMap", "named")
		theirs.SetNamespace(f.ns + "-new")

		if err := env.Client.Create(t.Context(), theirs); err != nil {
			t.Error(err)
		}
	}

	f.want(event{generation: 1, value: "a"}, "create/Absent", "!create/NotManaged", "none/EarlierFailed", "none/EarlierFailed")
}
