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
	// maxWriteDelay is the longest time that a deferred write is kept in memory, so that later
	// changes are written together with it.
	maxWriteDelay = 5 * time.Second
	// cacheRetryDelay is the time after which an object is reconciled again if its copy in the cache
	// is older than the last write of this process.
	cacheRetryDelay = 20 * time.Millisecond
	// stateTTL is how long the state of an object is kept if the object is no longer reconciled, for
	// example because it was deleted without a last run. It is longer than maxWriteDelay and
	// maxCacheLag.
	stateTTL = time.Minute
	// maxCacheLag is how long a cache may take to receive a write. A cache that has not received the
	// write by then never will, because the API server was restored from a backup.
	maxCacheLag = 10 * time.Second
)

// objectStates holds what the runs of one controller know of objects in addition to the cache. The
// states are lost when the process ends. This costs additional runs and writes, but no facts: see
// Result.DeferWrite. The zero value is ready to use.
type objectStates struct {
	mu        sync.Mutex
	objects   map[types.UID]*objectState
	lastSweep time.Time
}

// objectState is the state of one object.
type objectState struct {
	// writtenVersion is the resourceVersion of the last write, and writtenAt the time of that write.
	// writtenVersion is empty once the cache has received the write.
	writtenVersion string
	writtenAt      time.Time
	// deferredObject is a copy of the object at the end of the last run, which was not written. deferredAt
	// is the time of the first run whose write is deferred.
	deferredObject client.Object
	deferredAt     time.Time
}

// isCacheBehind returns whether this process has written a newer version of the object than obj. A run
// with obj would act on stale data, and its write would fail with a conflict.
func (m *objectStates) isCacheBehind(obj client.Object, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()

	known := m.objects[obj.GetUID()]
	if known == nil || known.writtenVersion == "" {
		return false
	}

	order, err := resourceversion.CompareResourceVersion(obj.GetResourceVersion(), known.writtenVersion)
	if err == nil && order < 0 && now.Sub(known.writtenAt) < maxCacheLag {
		return true
	}

	known.writtenVersion = ""
	m.deleteIfEmpty(obj.GetUID())

	return false
}

// recordWrite records a write. obj is the object as the API server returned it.
func (m *objectStates) recordWrite(obj client.Object, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()

	*m.getOrCreate(obj.GetUID(), now) = objectState{writtenVersion: obj.GetResourceVersion(), writtenAt: now}
}

// deferWrite keeps a copy of the object as it is at the end of a run, and returns how much longer the write
// may be deferred. The result is 0 if the write has already been deferred for maxWriteDelay, so that it is due.
func (m *objectStates) deferWrite(obj client.Object, now time.Time) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()

	state := m.getOrCreate(obj.GetUID(), now)
	if state.deferredObject == nil {
		state.deferredAt = now
	}

	state.deferredObject, _ = obj.DeepCopyObject().(client.Object)

	return max(state.deferredAt.Add(maxWriteDelay).Sub(now), 0)
}

// restoreDeferred replaces obj with the object that an earlier run left without writing it. If obj
// has another resourceVersion than that object, it drops the deferred object instead.
func (m *objectStates) restoreDeferred(obj client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()

	known := m.objects[obj.GetUID()]
	if known == nil || known.deferredObject == nil {
		return
	}

	if known.deferredObject.GetResourceVersion() != obj.GetResourceVersion() {
		known.deferredObject = nil // another client has written the object: this run observes the facts again
		m.deleteIfEmpty(obj.GetUID())

		return
	}

	if restored, ok := known.deferredObject.DeepCopyObject().(client.Object); ok && reflect.TypeOf(restored) == reflect.TypeOf(obj) {
		// Objects from the cache have a kind, but objects from a live read or a write have none. A cache
		// may also strip managedFields. If either differed, it would become part of the patch, and the
		// API server would reject the patch.
		restored.GetObjectKind().SetGroupVersionKind(obj.GetObjectKind().GroupVersionKind())
		restored.SetManagedFields(obj.GetManagedFields())
		reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(restored).Elem())
	}
}

// dropDeferred drops the deferred object, because nothing is left to write.
func (m *objectStates) dropDeferred(obj client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()

	if known := m.objects[obj.GetUID()]; known != nil {
		known.deferredObject = nil
		m.deleteIfEmpty(obj.GetUID())
	}
}

// forget drops the state of an object that was deleted.
func (m *objectStates) forget(obj client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()

	delete(m.objects, obj.GetUID())
}

// getOrCreate returns the state of an object. It also deletes the states that are older than stateTTL.
func (m *objectStates) getOrCreate(uid types.UID, now time.Time) *objectState {
	if m.objects == nil {
		m.objects, m.lastSweep = map[types.UID]*objectState{}, now
	}

	if now.Sub(m.lastSweep) > stateTTL {
		m.lastSweep = now
		maps.DeleteFunc(m.objects, func(_ types.UID, known *objectState) bool {
			return now.Sub(known.writtenAt) > stateTTL && now.Sub(known.deferredAt) > stateTTL
		})
	}

	known := m.objects[uid]
	if known == nil {
		known = &objectState{}
		m.objects[uid] = known
	}

	return known
}

// deleteIfEmpty deletes the state of an object if the state is empty.
func (m *objectStates) deleteIfEmpty(uid types.UID) {
	if known := m.objects[uid]; known != nil && known.writtenVersion == "" && known.deferredObject == nil {
		delete(m.objects, uid)
	}
}
