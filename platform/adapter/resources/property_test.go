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
)

// kept is a task with an object that is applied and may be detached, one that is made anew
// when its value changes, and one that leaves versions behind.
const kept = `
  - name: config
    discovery: {namespace: "{{ .ns }}", by_name: "c-{{ .id }}"}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "c-{{ .id }}", namespace: "{{ .ns }}"}
      data: {value: "{{ .value }}"}
    lifecycle:
      detach: {when: {expression: deleting && flag}}
      delete: {when: {expression: deleting}}
  - name: mirror
    discovery: {namespace: "{{ .ns }}", by_name: "m-{{ .id }}"}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "m-{{ .id }}", namespace: "{{ .ns }}"}
      data: {value: "{{ .value }}"}
    lifecycle:
      recreate: {when: {expression: "resources.?mirror.hasValue() && dig(resources.mirror, 'data.value') != value"}}
      delete: {when: {expression: deleting}}
  - name: history
    discovery:
      namespace: "{{ .ns }}"
      by_selectors: {label_selector: {hyperfleet.io/resource-id: "{{ .id }}"}}
    manifest:
      apiVersion: v1
      kind: ConfigMap
      metadata: {name: "h-{{ .serial }}-{{ .id }}", namespace: "{{ .ns }}"}
      data: {value: "{{ .value }}"}
    retention: {historyLimit: 1}
    lifecycle:
      delete: {when: {expression: deleting}}
`

// world is the API's resource, the events about it, and a stranger beside its objects.
type world struct {
	*fleet

	now    event
	events []event
	// stranger has the labels that history looks for, but for the adapter's.
	stranger *unstructured.Unstructured
	// reached is the highest generation that each object was seen at.
	reached  map[types.UID]int64
	problems []string
}

func newWorld(t *testing.T, shared *fleet) *world {
	t.Helper()

	own := *shared
	own.id = uuid.NewString()
	w := &world{fleet: &own, now: event{generation: 1, value: "v1", serial: "1"}, reached: map[types.UID]int64{}}
	w.events = []event{w.now}

	w.stranger = w.configMap("s-" + w.id)
	w.stranger.SetLabels(map[string]string{adapter.LabelAdapter: "other", adapter.LabelResourceID: w.id})

	if err := env.Client.Create(t.Context(), w.stranger); err != nil {
		t.Fatal(err)
	}

	return w
}

// step does one thing.
func (w *world) step(n int) {
	pick := w.events[n/16%len(w.events)]

	switch n % 16 {
	case 0, 1, 2:
		if !w.now.deleting {
			w.change()
		}
	case 3:
		if !w.now.deleting {
			w.now.generation++
			w.now.deleting, w.now.flag = true, n/16%2 == 0
			w.events = append(w.events, w.now)
		}
	case 4, 5, 6: // the newest, once more
		w.deliver(w.events[len(w.events)-1])
	case 7, 8: // any, late or twice
		w.deliver(pick)
	case 9, 10: // two processes at once, of which one has been asleep
		w.deliver(pick, w.events[len(w.events)-1])
	case 11, 12: // somebody's hand
		w.byHand(n / 16)
	case 13: // a new process, with nothing in its caches
		w.restart()
	default: // the adapter is killed in the middle of an event
		w.kill(w.events[len(w.events)-1], n/16%5)
	}
}

func (w *world) change() {
	w.now.generation++
	w.now.value, w.now.serial = fmt.Sprintf("v%d", w.now.generation), strconv.FormatInt(w.now.generation, 10)
	w.events = append(w.events, w.now)
}

// handle is what a pipeline does: values are those of the API now, the generation is the
// event's.
func (w *world) handle(ctx context.Context, e event) resources.Result {
	current := w.now
	current.generation = e.generation

	result, err := resources.Run(ctx, w.input(current))
	if err != nil && ctx.Err() == nil {
		w.problems = append(w.problems, err.Error())
	}

	return result
}

func (w *world) deliver(events ...event) {
	var wg sync.WaitGroup

	results := make([]resources.Result, len(events))
	for i, e := range events {
		wg.Go(func() { results[i] = w.handle(w.Context(), e) })
	}

	wg.Wait()

	for _, result := range results {
		// What two do at once may fail for one of them, and is then delivered again.
		if err := result.Err(); err != nil && (len(events) == 1 || errclass.Of(err) != errclass.Transient) {
			w.problems = append(w.problems, fmt.Sprintf("events %v: %v", events, err))
		}
	}

	w.forward()
}

// forward notes an object whose generation has gone back.
func (w *world) forward() {
	for _, name := range []string{"c-" + w.id, "m-" + w.id} {
		object := w.get(w.configMap(name))
		if object == nil {
			continue
		}

		generation, err := stamp.Generation(object)
		if err != nil || generation < w.reached[object.GetUID()] {
			w.problems = append(w.problems, fmt.Sprintf("%s went from generation %d back to %d, %v",
				name, w.reached[object.GetUID()], generation, err))
		}

		w.reached[object.GetUID()] = generation
	}
}

func (w *world) byHand(n int) {
	name := []string{"c-" + w.id, "m-" + w.id, "h-" + w.now.serial + "-" + w.id}[n%3]

	object := w.get(w.configMap(name))
	if object == nil || object.GetLabels()[adapter.LabelAdapter] == "" {
		return
	}

	if n/3%2 == 0 {
		w.edit(object, `{"data":{"value":"by hand","more":"by hand"}}`)

		return
	}

	if err := env.Client.Delete(w.Context(), object); err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
}

func (w *world) restart() {
	fresh, err := kubernetes.New(kubernetes.Options{Config: env.Config, Adapter: adapterName})
	if err != nil {
		w.Fatal(err)
	}

	w.clients = map[string]transport.Client{transport.Kubernetes: fresh}
}

// kill ends an event after some writes.
func (w *world) kill(e event, writes int) {
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()

	before := w.clients
	w.clients = map[string]transport.Client{transport.Kubernetes: &mortal{
		Client: before[transport.Kubernetes], left: writes, die: cancel,
	}}
	w.handle(ctx, e)
	w.clients = before
}

// mortal is a client whose process is killed after some writes.
type mortal struct {
	transport.Client

	left int
	die  func()
}

func (m *mortal) spend() {
	m.left--
	if m.left < 0 {
		m.die()
	}
}

func (m *mortal) Create(ctx context.Context, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	m.spend()

	return m.Client.Create(ctx, o)
}

func (m *mortal) Delete(ctx context.Context, ref transport.Ref, propagation metav1.DeletionPropagation) error {
	m.spend()

	return m.Client.Delete(ctx, ref, propagation)
}

// managed are the objects that bear the resource's marks, by name, with their values.
func (w *world) managed() map[string]string {
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion("v1")
	list.SetKind("ConfigMapList")

	err := env.Client.List(w.Context(), list, client.InNamespace(w.ns),
		client.MatchingLabels{adapter.LabelAdapter: adapterName, adapter.LabelResourceID: w.id})
	if err != nil {
		w.Fatal(err)
	}

	found := map[string]string{}

	for i := range list.Items {
		value, _, _ := unstructured.NestedString(list.Items[i].Object, "data", "value")
		found[list.Items[i].GetName()] = value
	}

	return found
}

// wrong says in what the managed objects differ from the desired ones.
func (w *world) wrong() string {
	found := w.managed()
	want := map[string]string{}

	if !w.now.deleting {
		current := "h-" + w.now.serial + "-" + w.id
		want = map[string]string{"c-" + w.id: w.now.value, "m-" + w.id: w.now.value, current: w.now.value}

		// One earlier version may stay.
		earlier := slices.DeleteFunc(slices.Collect(maps.Keys(found)), func(name string) bool {
			return name == current || !strings.HasPrefix(name, "h-")
		})
		if len(earlier) == 1 {
			delete(found, earlier[0])
		}
	}

	if !maps.Equal(found, want) {
		return fmt.Sprintf("managed are %v, wanted %v", found, want)
	}

	stranger := w.get(w.stranger)
	if stranger == nil || stranger.GetResourceVersion() != w.stranger.GetResourceVersion() {
		return "the stranger's object was touched"
	}

	return ""
}

// settle delivers what is due until nothing is wrong any more, with a bound.
func (w *world) settle() string {
	if !w.now.deleting {
		// What was drifted by hand comes back with the next generation.
		w.change()
	}

	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		w.deliver(w.events[len(w.events)-1])

		wrong := w.wrong()
		if wrong == "" || time.Now().After(deadline) || len(w.problems) > 0 {
			return strings.Join(append(w.problems, wrong), "; ")
		}
	}
}

// Property: managed objects = desired objects. Whatever the order of events is, with
// duplicates, late ones, two at once, kills, restarts and people's hands between them: in
// the end there is what the newest generation wants, and nothing of anybody else's was
// touched.
func TestPropertyManagedIsDesired(t *testing.T) {
	t.Parallel()

	shared := newFleet(t, kept)

	property.Check(t, "managed objects = desired objects", property.Options{Brief: 10}, prop.ForAll(func(steps []int) string {
		w := newWorld(t, shared)
		for _, step := range steps {
			w.step(step)
		}

		return w.settle()
	}, aFew(gen.SliceOf(gen.IntRange(0, 1<<12)))))
}

// aFew makes what is generated a quarter as large.
func aFew(of gopter.Gen) gopter.Gen {
	const less = 4

	return func(parameters *gopter.GenParameters) *gopter.GenResult {
		own := *parameters
		own.MaxSize /= less

		return of(&own)
	}
}
