// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"maps"
	"reflect"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// holdFor is how long the outcome of an unhurried pass is kept in memory, for something
	// more to write with it.
	holdFor = 5 * time.Second
	// cacheRetry is how soon an object is looked at again whose copy in the cache is older
	// than what this process has written.
	cacheRetry = 20 * time.Millisecond
	// forgetAfter is how long an object is remembered that no pass comes over: it is gone
	// without a last one. All that is worth remembering is shorter.
	forgetAfter = time.Minute
	// cacheLag is how long a cache may take to have a write. One that does not have it by then
	// never will: the API server was restored from a backup.
	cacheLag = 10 * time.Second
)

// memory is what the passes of one controller know of objects beside what the cache has. It
// is lost with the process, which costs passes and writes, and no facts: see
// Result.Unhurried. The zero value is ready to use.
type memory struct {
	mu      sync.Mutex
	objects map[types.UID]*remembered
	swept   time.Time
}

// remembered is what is known of one object.
type remembered struct {
	// written is the resource version of the last write, at that time, until the cache has it.
	written string
	at      time.Time
	// held is the object as a pass left it that wrote nothing, and since when.
	held  client.Object
	since time.Time
}

// behind tells whether this process has written the object since the copy was read: a pass
// over it would act on old news, and its write would be refused.
func (m *memory) behind(obj client.Object, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()

	known := m.objects[obj.GetUID()]
	if known == nil || known.written == "" {
		return false
	}

	order, err := resourceversion.CompareResourceVersion(obj.GetResourceVersion(), known.written)
	if err == nil && order < 0 && now.Sub(known.at) < cacheLag {
		return true
	}

	known.written = ""
	m.tidy(obj.GetUID())

	return false
}

// wrote notes a write, whose outcome is in the object.
func (m *memory) wrote(obj client.Object, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()

	*m.of(obj.GetUID(), now) = remembered{written: obj.GetResourceVersion(), at: now}
}

// hold keeps the object as a pass has left it, and gives how long it may be kept: nothing
// where it was kept for long enough.
func (m *memory) hold(obj client.Object, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()

	known := m.of(obj.GetUID(), now)
	if known.held == nil {
		known.since = now
	}

	known.held, _ = obj.DeepCopyObject().(client.Object)

	return max(known.since.Add(holdFor).Sub(now), 0)
}

// resume makes the object what an earlier pass over the same version of it has left.
func (m *memory) resume(obj client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()

	known := m.objects[obj.GetUID()]
	if known == nil || known.held == nil {
		return
	}

	if known.held.GetResourceVersion() != obj.GetResourceVersion() {
		known.held = nil // somebody has written since: what was found is found again
		m.tidy(obj.GetUID())

		return
	}

	if held, ok := known.held.DeepCopyObject().(client.Object); ok && reflect.TypeOf(held) == reflect.TypeOf(obj) {
		// A copy of the cache has its kind, one that was read or written live has none; and a cache
		// may leave out who manages which field. A difference in either would be patched, and refused.
		held.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
		held.SetManagedFields(obj.GetManagedFields())
		reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(held).Elem())
	}
}

// release drops what is held of an object: it is as the server has it.
func (m *memory) release(obj client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if known := m.objects[obj.GetUID()]; known != nil {
		known.held = nil
		m.tidy(obj.GetUID())
	}
}

// forget drops what is known of an object that is gone.
func (m *memory) forget(obj client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()

	delete(m.objects, obj.GetUID())
}

func (m *memory) of(uid types.UID, now time.Time) *remembered {
	if m.objects == nil {
		m.objects, m.swept = map[types.UID]*remembered{}, now
	}

	if now.Sub(m.swept) > forgetAfter {
		m.swept = now
		maps.DeleteFunc(m.objects, func(_ types.UID, known *remembered) bool {
			return now.Sub(known.at) > forgetAfter && now.Sub(known.since) > forgetAfter
		})
	}

	known := m.objects[uid]
	if known == nil {
		known = &remembered{}
		m.objects[uid] = known
	}

	return known
}

// tidy drops an object of which nothing is known any more.
func (m *memory) tidy(uid types.UID) {
	if known := m.objects[uid]; known != nil && known.written == "" && known.held == nil {
		delete(m.objects, uid)
	}
}
