// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package bridge_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/bridge/v1alpha1"
)

// minKills is the minimum number of kinds of writes in a bridge's life: finalizer, keys, objects, kubeconfig,
// statuses, upgrade and deletion. With fewer, the trap misses writes.
const minKills = 12

// TestKilledAtEachWrite checks that the bridge becomes ready, is upgraded and is deleted if the operator is killed
// once before and once after each kind of write, and that every object is created once and none is left.
func TestKilledAtEachWrite(t *testing.T) {
	for _, moment := range []killMoment{before, after} {
		t.Run(string(moment), func(t *testing.T) {
			w := newFixture(t, nil)
			trap := newTrap(w, moment)
			config := trap.startProxy(t)
			births := newCreationWatcher(t, w)

			w.start(config)

			bridge := w.createSample("dpfhcpbridge-staging.yaml")
			w.waitWithRestarts(trap, config, "is Ready", func() bool {
				return w.get(bridge) && bridge.Status.Phase == v1alpha1.PhaseReady
			})
			w.checkBridge(bridge, "192.168.1.150")

			w.upgrade(bridge, nextTag)
			w.waitWithRestarts(trap, config, "is upgraded", func() bool {
				return w.get(bridge) && bridge.Status.Phase == v1alpha1.PhaseReady &&
					bridge.Status.ObservedGeneration == bridge.Generation && w.readVersion(bridge) == "4.16.2"
			})

			w.delete(bridge)
			w.waitWithRestarts(trap, config, "is deleted", func() bool { return !w.get(bridge) })

			kills := trap.disarm()
			w.eventually("all objects of the bridge are deleted", func() bool { return len(w.listLeftovers(bridge)) == 0 })

			for _, double := range births.listDuplicates(bridge) {
				t.Errorf("created twice: %s", double)
			}

			for _, kill := range kills {
				w.logf("killed %s %s", moment, kill)
			}

			if len(kills) < minKills {
				t.Errorf("the operator was killed %d times, want at least %d", len(kills), minKills)
			}

			w.logf("killed %d times %s a write: ready, upgraded, deleted; no duplicates, nothing left", len(kills), moment)
		})
	}
}

// waitWithRestarts restarts the operator after each kill, until holds returns true for a while.
func (w *fixture) waitWithRestarts(trap *trap, config *rest.Config, what string, holds func() bool) {
	w.t.Helper()

	const settles = 10

	held := 0

	for deadline := time.Now().Add(waitTimeout); held < settles; time.Sleep(pollInterval) {
		select {
		case <-trap.sprung:
			w.start(config)

			deadline, held = time.Now().Add(waitTimeout), 0
		default:
		}

		if holds() {
			held++
		} else {
			held = 0
		}

		if time.Now().After(deadline) {
			w.t.Fatalf("timed out waiting until the bridge %s\n%s\nkilled at: %s", what, w.describe(), strings.Join(trap.disarm(), "\n"))
		}
	}
}

// readVersion returns the version of the control plane when its rollout is completed.
func (w *fixture) readVersion(bridge *v1alpha1.DPFHCPBridge) string {
	w.t.Helper()

	cluster := newObject(hypershiftKind("HostedCluster"), bridge.Namespace, bridge.Name)
	w.get(cluster)

	history, _, _ := unstructured.NestedSlice(cluster.Object, "status", "controlPlaneVersion", "history")
	if len(history) == 0 {
		return ""
	}

	first, _ := history[0].(map[string]any)
	version, _ := first["version"].(string)

	if first["state"] != "Completed" {
		return ""
	}

	return version
}

// creationWatcher records the UIDs of the objects with each name.
type creationWatcher struct {
	mu   sync.Mutex
	uids map[string][]types.UID
	by   map[string]*unstructured.Unstructured
}

// newCreationWatcher watches all kinds that bridges create, until the test ends.
func newCreationWatcher(t testing.TB, w *fixture) *creationWatcher {
	t.Helper()

	watcher, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	if err != nil {
		t.Fatal(err)
	}

	b := &creationWatcher{uids: map[string][]types.UID{}, by: map[string]*unstructured.Unstructured{}}

	for kind, namespaces := range createdKinds() {
		for _, namespace := range namespaces(w) {
			b.watch(t, watcher, kind, namespace)
		}
	}

	return b
}

func (b *creationWatcher) watch(t testing.TB, watcher client.WithWatch, kind schema.GroupVersionKind, namespace string) {
	t.Helper()

	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind.GroupVersion().WithKind(kind.Kind + "List"))

	stream, err := watcher.Watch(t.Context(), list, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}

	done := make(chan struct{})

	go func() {
		defer close(done)

		for event := range stream.ResultChan() {
			if o, ok := event.Object.(*unstructured.Unstructured); ok && event.Type == apiwatch.Added {
				b.record(kind.Kind+" "+o.GetNamespace()+"/"+o.GetName(), o)
			}
		}
	}()

	t.Cleanup(func() { stream.Stop(); <-done })
}

func (b *creationWatcher) record(name string, o *unstructured.Unstructured) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if !slices.Contains(b.uids[name], o.GetUID()) {
		b.uids[name] = append(b.uids[name], o.GetUID())
	}

	b.by[name] = o
}

// listDuplicates returns the names that several objects of the bridge had, and the kinds that the bridge created
// under several names.
func (b *creationWatcher) listDuplicates(bridge *v1alpha1.DPFHCPBridge) []string {
	b.mu.Lock()
	defer b.mu.Unlock()

	var out []string

	kinds := map[string]int{}

	for name, uids := range b.uids {
		if !belongsTo(b.by[name], bridge) {
			continue
		}

		if len(uids) > 1 {
			out = append(out, name)
		}

		kind, _, _ := strings.Cut(name, " ")
		kinds[kind]++
	}

	for kind, n := range kinds {
		if kind != "Secret" && n > 1 {
			out = append(out, kind+" under several names")
		}
	}

	return out
}
