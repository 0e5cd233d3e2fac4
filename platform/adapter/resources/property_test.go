// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package resources_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/leanovate/gopter"
	"github.com/leanovate/gopter/gen"
	"github.com/leanovate/gopter/prop"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/hyperfleet/hyperfleet/api/adapter"
	"github.com/hyperfleet/hyperfleet/kit/errclass"
	"github.com/hyperfleet/hyperfleet/kit/property"
	"github.com/hyperfleet/hyperfleet/platform/adapter/resources"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport"
	"github.com/hyperfleet/hyperfleet/platform/adapter/transport/kubernetes"
	"github.com/hyperfleet/hyperfleet/platform/stamp"
	"github.com/hyperfleet/hyperfleet/test/must"
)

// newKeptTask returns a task with an object that is applied and may be detached, one that is recreated when
// its value changes, and one that has earlier versions.
func newKeptTask() string {
	return newEntry("config", `"c-{{ .id }}"`, "detach: deleting && flag", "delete: deleting") +
		newEntry("mirror", `"m-{{ .id }}"`, "recreate: resources.?mirror.hasValue() && dig(resources.mirror, 'data.value') != value", "delete: deleting") +
		strings.Replace(newEntry("history", `"h-{{ .serial }}-{{ .id }}"`, "delete: deleting"), `by_name: "h-{{ .serial }}-{{ .id }}"`, ofResource, 1) +
		"    retention: {historyLimit: 1}\n"
}

// randomRun is a run of random steps, with a resource, its events, and an object of another adapter.
type randomRun struct {
	*fixture

	current event
	events  []event
	// foreign has the labels that history's discovery selects, except for the adapter's label.
	foreign *unstructured.Unstructured
	// maxGenerations has the highest observed generation of each object.
	maxGenerations map[types.UID]int64
	problems       []string
}

func newRandomRun(t *testing.T, shared *fixture) *randomRun {
	t.Helper()

	own := *shared
	own.id, own.generation = uuid.NewString(), &atomic.Int64{}
	k := &randomRun{fixture: &own, current: event{generation: 1, value: "v1", serial: "1"}, maxGenerations: map[types.UID]int64{}}
	k.events = []event{k.current}

	k.foreign = k.newConfigMap("s-" + k.id)
	k.foreign.SetLabels(map[string]string{adapter.LabelAdapter: "other", adapter.LabelResourceID: k.id})

	must.Do(t, env.Client.Create(t.Context(), k.foreign))

	return k
}

// takeStep makes one change, or delivers events.
func (k *randomRun) takeStep(n int) {
	pick := k.events[n/16%len(k.events)]

	switch n % 16 {
	case 0, 1, 2:
		if !k.current.deleting {
			k.changeResource()
		}
	case 3:
		if !k.current.deleting {
			k.current.generation++
			k.current.deleting, k.current.flag = true, n/16%2 == 0
			k.events = append(k.events, k.current)
		}
	case 4, 5, 6: // the newest event again
		k.deliverEvents(k.events[len(k.events)-1])
	case 7, 8: // any event, late or again
		k.deliverEvents(pick)
	case 9, 10: // two events at once, one of them old
		k.deliverEvents(pick, k.events[len(k.events)-1])
	case 11, 12: // a change by hand
		k.changeByHand(n / 16)
	case 13: // a new process with empty caches
		k.restart()
	default: // the adapter is killed in the middle of an event
		k.handleAndKill(k.events[len(k.events)-1], n/16%5)
	}
}

func (k *randomRun) changeResource() {
	k.current.generation++
	k.current.value, k.current.serial = fmt.Sprintf("v%d", k.current.generation), strconv.FormatInt(k.current.generation, 10)
	k.events = append(k.events, k.current)
}

// handleEvent handles an event as the pipeline does, with the current values of the API and the generation
// of the event.
func (k *randomRun) handleEvent(ctx context.Context, e event) resources.Result {
	current := k.current
	k.generation.Store(current.generation)
	current.generation = e.generation

	result, err := resources.Run(ctx, k.newInput(current))
	if err != nil && ctx.Err() == nil {
		k.problems = append(k.problems, err.Error())
	}

	return result
}

func (k *randomRun) deliverEvents(events ...event) {
	var wg sync.WaitGroup

	results := make([]resources.Result, len(events))
	for i, e := range events {
		wg.Go(func() { results[i] = k.handleEvent(k.Context(), e) })
	}

	wg.Wait()

	for _, result := range results {
		// One of two concurrent events may fail, and is then delivered again.
		if err := result.Err(); err != nil && (len(events) == 1 || errclass.ClassOf(err) != errclass.Transient) {
			k.problems = append(k.problems, fmt.Sprintf("events %v: %v", events, err))
		}
	}

	k.checkGenerations()
}

// checkGenerations records a problem if the generation of an object has decreased.
func (k *randomRun) checkGenerations() {
	for _, name := range []string{"c-" + k.id, "m-" + k.id} {
		object := k.getObject(k.newConfigMap(name))
		if object == nil {
			continue
		}

		generation, err := stamp.Generation(object)
		if err != nil || generation < k.maxGenerations[object.GetUID()] {
			k.problems = append(k.problems, fmt.Sprintf("%s went from generation %d back to %d, %v",
				name, k.maxGenerations[object.GetUID()], generation, err))
		}

		k.maxGenerations[object.GetUID()] = generation
	}
}

func (k *randomRun) changeByHand(n int) {
	name := []string{"c-" + k.id, "m-" + k.id, "h-" + k.current.serial + "-" + k.id}[n%3]

	object := k.getObject(k.newConfigMap(name))
	if object == nil || object.GetLabels()[adapter.LabelAdapter] == "" {
		return
	}

	if n/3%2 == 0 {
		k.patchByHand(object, `{"data":{"value":"by hand","more":"by hand"}}`)

		return
	}

	if err := env.Client.Delete(k.Context(), object); err != nil && !apierrors.IsNotFound(err) {
		k.Fatal(err)
	}
}

func (k *randomRun) restart() {
	fresh, err := kubernetes.New(kubernetes.Options{Config: env.Config, Adapter: adapterName})
	if err != nil {
		k.Fatal(err)
	}

	k.clients = map[string]transport.Client{transport.Kubernetes: fresh}
}

// handleAndKill cancels an event after some writes.
func (k *randomRun) handleAndKill(e event, writes int) {
	ctx, cancel := context.WithCancel(k.Context())
	defer cancel()

	before := k.clients
	k.clients = map[string]transport.Client{transport.Kubernetes: &limitedClient{
		Client: before[transport.Kubernetes], left: writes, cancel: cancel,
	}}
	k.handleEvent(ctx, e)
	k.clients = before
}

// limitedClient is a client that cancels its process after some writes.
type limitedClient struct {
	transport.Client

	left   int
	cancel func()
}

func (m *limitedClient) countWrite() {
	m.left--
	if m.left < 0 {
		m.cancel()
	}
}

func (m *limitedClient) Create(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	m.countWrite()

	return m.Client.Create(ctx, o)
}

func (m *limitedClient) Delete(ctx context.Context, ref transport.Ref, propagation metav1.DeletionPropagation) error {
	m.countWrite()

	return m.Client.Delete(ctx, ref, propagation)
}

// listManaged returns the values of the objects that have the resource's ownership labels, by name.
func (k *randomRun) listManaged() map[string]string {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("v1")
	list.SetKind("ConfigMapList")

	err := env.Client.List(k.Context(), list, client.InNamespace(k.ns),
		client.MatchingLabels{adapter.LabelAdapter: adapterName, adapter.LabelResourceID: k.id})
	if err != nil {
		k.Fatal(err)
	}

	found := map[string]string{}

	for i := range list.Items {
		value, _, _ := unstructured.NestedString(list.Items[i].Object, "data", "value")
		found[list.Items[i].GetName()] = value
	}

	return found
}

// findDifference compares the managed objects with the desired ones.
func (k *randomRun) findDifference() string {
	found := k.listManaged()
	want := map[string]string{}

	if !k.current.deleting {
		current := "h-" + k.current.serial + "-" + k.id
		want = map[string]string{"c-" + k.id: k.current.value, "m-" + k.id: k.current.value, current: k.current.value}

		// One earlier version may stay.
		earlier := slices.DeleteFunc(slices.Collect(maps.Keys(found)), func(name string) bool {
			return name == current || !strings.HasPrefix(name, "h-")
		})
		if len(earlier) == 1 {
			delete(found, earlier[0])
		}
	}

	if !maps.Equal(found, want) {
		return fmt.Sprintf("managed objects %v, want %v", found, want)
	}

	foreign := k.getObject(k.foreign)
	if foreign == nil || foreign.GetResourceVersion() != k.foreign.GetResourceVersion() {
		return "the foreign object was changed"
	}

	return ""
}

// converge delivers the last event until there is no difference, with a timeout.
func (k *randomRun) converge() string {
	if !k.current.deleting {
		// Changes made by hand are reverted with the next generation.
		k.changeResource()
	}

	for deadline := time.Now().Add(waitTimeout); ; time.Sleep(20 * time.Millisecond) {
		k.deliverEvents(k.events[len(k.events)-1])

		wrong := k.findDifference()
		if wrong == "" || time.Now().After(deadline) || len(k.problems) > 0 {
			return strings.Join(append(k.problems, wrong), "; ")
		}
	}
}

// Property: managed objects = desired objects. Events are delivered late, twice and concurrently, adapters
// are killed and restarted, and objects are changed by hand. In the end the objects match the newest
// generation, and the objects of others are unchanged.
func TestPropertyManagedIsDesired(t *testing.T) {
	t.Parallel()

	shared := newFixture(t, newKeptTask())

	property.Check(t, "managed objects = desired objects", property.Options{Brief: 10}, prop.ForAll(func(steps []int) string {
		k := newRandomRun(t, shared)
		for _, step := range steps {
			k.takeStep(step)
		}

		return k.converge()
	}, limitSize(gen.SliceOf(gen.IntRange(0, 1<<12)))))
}

// limitSize divides the size of generated values by four.
func limitSize(of gopter.Gen) gopter.Gen {
	const less = 4

	return func(parameters *gopter.GenParameters) *gopter.GenResult {
		own := *parameters
		own.MaxSize /= less

		return of(&own)
	}
}
