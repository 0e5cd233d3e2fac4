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
func kept() string {
	return entry("config", `"c-{{ .id }}"`, "detach: deleting && flag", "delete: deleting") +
		entry("mirror", `"m-{{ .id }}"`, "recreate: resources.?mirror.hasValue() && dig(resources.mirror, 'data.value') != value", "delete: deleting") +
		strings.Replace(entry("history", `"h-{{ .serial }}-{{ .id }}"`, "delete: deleting"), `by_name: "h-{{ .serial }}-{{ .id }}"`, ofResource, 1) +
		"    retention: {historyLimit: 1}\n"
}

// keeper is the API's resource, the events about it, and a stranger beside its objects.
type keeper struct {
	*fleet

	now    event
	events []event
	// stranger has the labels that history looks for, but for the adapter's.
	stranger *unstructured.Unstructured
	// reached is the highest generation that each object was seen at.
	reached  map[types.UID]int64
	problems []string
}

func newKeeper(t *testing.T, shared *fleet) *keeper {
	t.Helper()

	own := *shared
	own.id = uuid.NewString()
	k := &keeper{fleet: &own, now: event{generation: 1, value: "v1", serial: "1"}, reached: map[types.UID]int64{}}
	k.events = []event{k.now}

	k.stranger = k.configMap("s-" + k.id)
	k.stranger.SetLabels(map[string]string{adapter.LabelAdapter: "other", adapter.LabelResourceID: k.id})

	must(t, env.Client.Create(t.Context(), k.stranger))

	return k
}

// step does one thing.
func (k *keeper) step(n int) {
	pick := k.events[n/16%len(k.events)]

	switch n % 16 {
	case 0, 1, 2:
		if !k.now.deleting {
			k.change()
		}
	case 3:
		if !k.now.deleting {
			k.now.generation++
			k.now.deleting, k.now.flag = true, n/16%2 == 0
			k.events = append(k.events, k.now)
		}
	case 4, 5, 6: // the newest, once more
		k.deliver(k.events[len(k.events)-1])
	case 7, 8: // any, late or twice
		k.deliver(pick)
	case 9, 10: // two processes at once, of which one has been asleep
		k.deliver(pick, k.events[len(k.events)-1])
	case 11, 12: // somebody's hand
		k.byHand(n / 16)
	case 13: // a new process, with nothing in its caches
		k.restart()
	default: // the adapter is killed in the middle of an event
		k.kill(k.events[len(k.events)-1], n/16%5)
	}
}

func (k *keeper) change() {
	k.now.generation++
	k.now.value, k.now.serial = fmt.Sprintf("v%d", k.now.generation), strconv.FormatInt(k.now.generation, 10)
	k.events = append(k.events, k.now)
}

// handle is what a pipeline does: values are those of the API now, the generation is the
// event's.
func (k *keeper) handle(ctx context.Context, e event) resources.Result {
	current := k.now
	current.generation = e.generation

	result, err := resources.Run(ctx, k.input(current))
	if err != nil && ctx.Err() == nil {
		k.problems = append(k.problems, err.Error())
	}

	return result
}

func (k *keeper) deliver(events ...event) {
	var wg sync.WaitGroup

	results := make([]resources.Result, len(events))
	for i, e := range events {
		wg.Go(func() { results[i] = k.handle(k.Context(), e) })
	}

	wg.Wait()

	for _, result := range results {
		// What two do at once may fail for one of them, and is then delivered again.
		if err := result.Err(); err != nil && (len(events) == 1 || errclass.ClassOf(err) != errclass.Transient) {
			k.problems = append(k.problems, fmt.Sprintf("events %v: %v", events, err))
		}
	}

	k.forward()
}

// forward notes an object whose generation has gone back.
func (k *keeper) forward() {
	for _, name := range []string{"c-" + k.id, "m-" + k.id} {
		object := k.get(k.configMap(name))
		if object == nil {
			continue
		}

		generation, err := stamp.Generation(object)
		if err != nil || generation < k.reached[object.GetUID()] {
			k.problems = append(k.problems, fmt.Sprintf("%s went from generation %d back to %d, %v",
				name, k.reached[object.GetUID()], generation, err))
		}

		k.reached[object.GetUID()] = generation
	}
}

func (k *keeper) byHand(n int) {
	name := []string{"c-" + k.id, "m-" + k.id, "h-" + k.now.serial + "-" + k.id}[n%3]

	object := k.get(k.configMap(name))
	if object == nil || object.GetLabels()[adapter.LabelAdapter] == "" {
		return
	}

	if n/3%2 == 0 {
		k.edit(object, `{"data":{"value":"by hand","more":"by hand"}}`)

		return
	}

	if err := env.Client.Delete(k.Context(), object); err != nil && !apierrors.IsNotFound(err) {
		k.Fatal(err)
	}
}

func (k *keeper) restart() {
	fresh, err := kubernetes.New(kubernetes.Options{Config: env.Config, Adapter: adapterName})
	if err != nil {
		k.Fatal(err)
	}

	k.clients = map[string]transport.Client{transport.Kubernetes: fresh}
}

// kill ends an event after some writes.
func (k *keeper) kill(e event, writes int) {
	ctx, cancel := context.WithCancel(k.Context())
	defer cancel()

	before := k.clients
	k.clients = map[string]transport.Client{transport.Kubernetes: &mortal{
		Client: before[transport.Kubernetes], left: writes, die: cancel,
	}}
	k.handle(ctx, e)
	k.clients = before
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
func (k *keeper) managed() map[string]string {
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

// wrong says in what the managed objects differ from the desired ones.
func (k *keeper) wrong() string {
	found := k.managed()
	want := map[string]string{}

	if !k.now.deleting {
		current := "h-" + k.now.serial + "-" + k.id
		want = map[string]string{"c-" + k.id: k.now.value, "m-" + k.id: k.now.value, current: k.now.value}

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

	stranger := k.get(k.stranger)
	if stranger == nil || stranger.GetResourceVersion() != k.stranger.GetResourceVersion() {
		return "the stranger's object was touched"
	}

	return ""
}

// settle delivers what is due until nothing is wrong any more, with a bound.
func (k *keeper) settle() string {
	if !k.now.deleting {
		// What was drifted by hand comes back with the next generation.
		k.change()
	}

	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		k.deliver(k.events[len(k.events)-1])

		wrong := k.wrong()
		if wrong == "" || time.Now().After(deadline) || len(k.problems) > 0 {
			return strings.Join(append(k.problems, wrong), "; ")
		}
	}
}

// Property: managed objects = desired objects. Whatever the order of events is, with
// duplicates, late ones, two at once, kills, restarts and people's hands between them: in
// the end there is what the newest generation wants, and nothing of anybody else's was
// touched.
func TestPropertyManagedIsDesired(t *testing.T) {
	t.Parallel()

	shared := newFleet(t, kept())

	property.Check(t, "managed objects = desired objects", property.Options{Brief: 10}, prop.ForAll(func(steps []int) string {
		k := newKeeper(t, shared)
		for _, step := range steps {
			k.step(step)
		}

		return k.settle()
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
