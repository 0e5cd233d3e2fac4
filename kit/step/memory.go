// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package step

import (
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// defaultWriteDelay is how long a deferred write is kept in memory by default, so that later changes are
	// written together with it.
	defaultWriteDelay = 5 * time.Second
	// ProgressWriteDelay is how long the status of a healthy object may stay unwritten if only its progress has
	// changed. Nobody acts on the progress, and the next important change writes it too.
	ProgressWriteDelay = 30 * time.Second
	// deferredWriteRate is for how many objects with deferred writes the delay of each is a second, and maxWriteDelay is
	// the longest delay. So a burst of jobs causes few writes of progress that the next change overwrites.
	deferredWriteRate = 10
	maxWriteDelay     = 50 * time.Second
	// cacheRetryDelay is the time after which an object is reconciled again if its copy in the cache
	// is older than the last write of this process.
	cacheRetryDelay = 20 * time.Millisecond
	// stateTTL is how long the state of an object is kept if the object is no longer reconciled, for
	// example because it was deleted without a last run. It is longer than a write delay and
	// maxCacheLag.
	stateTTL = time.Minute
	// maxCacheLag is how long a cache may take to show a write of this process. After this time, the cache will
	// never show it, because the API server was restored from a backup.
	maxCacheLag = 10 * time.Second
)

// objectStates holds, for one controller, what the last runs know about objects and the cache does not show
// yet. The states are lost when the process ends. This costs additional runs and writes, but no facts: see
// Result.DeferWrite. The zero value is ready to use.
type objectStates struct {
	mu        sync.Mutex
	written   map[types.UID]lastWrite
	deferred  map[types.UID]*deferredWrite
	lastSweep time.Time
}

// lastWrite is the last write of an object, until the cache has received it.
type lastWrite struct {
	version string
	at      time.Time
}

// deferredWrite holds the changes of an object that are not written yet.
type deferredWrite struct {
	// object is a copy of the object at the end of the last run. serverObject is the object as the API server had it in
	// that run.
	object, serverObject client.Object
	// startedAt is when the first of these runs ended, and dueAt is when object must be written at the latest.
	startedAt, dueAt time.Time
	// onNextSave are the callbacks of the runs whose changes object holds.
	onNextSave []func()
}

// isCacheBehind returns whether this process has written a newer version of the object than obj. A run
// with obj would act on stale data, and its write would fail with a conflict.
func (m *objectStates) isCacheBehind(obj client.Object, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()

	last, ok := m.written[obj.GetUID()]
	if !ok {
		return false
	}

	order, err := resourceversion.CompareResourceVersion(obj.GetResourceVersion(), last.version)
	if err == nil && order < 0 && now.Sub(last.at) < maxCacheLag {
		return true
	}

	delete(m.written, obj.GetUID())

	return false
}

// recordWrite records a write. obj is the object as the API server returned it.
func (m *objectStates) recordWrite(obj client.Object, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.sweep(now)
	delete(m.deferred, obj.GetUID())
	m.written[obj.GetUID()] = lastWrite{version: obj.GetResourceVersion(), at: now}
}

// deferWrite keeps a copy of the object as it is at the end of a run, and the callbacks that wait for its
// write. server is the object as the API server has it. The result of the run says how long its changes may be
// deferred, see stretch. If an earlier run has a shorter limit, that limit applies, unless the result extends it.
// deferWrite returns how much longer the write may be deferred, or 0 if the caller must write now.
func (m *objectStates) deferWrite(
	obj, server client.Object, result Result, onNextSave []func(), now time.Time,
) time.Duration {
	m.mu.Lock()
	defer m.mu.Unlock()

	m.sweep(now)

	state, isKnown := m.deferred[obj.GetUID()]
	if !isKnown {
		state = &deferredWrite{startedAt: now}
		m.deferred[obj.GetUID()] = state
	}

	limit := m.stretch(result.writeDelay)

	switch due := now.Add(limit); {
	case result.extendsDelay:
		state.dueAt = state.startedAt.Add(limit)
	case !isKnown, due.Before(state.dueAt):
		state.dueAt = due
	}

	state.object, _ = obj.DeepCopyObject().(client.Object)
	state.serverObject = server
	state.onNextSave = slices.Clone(onNextSave)

	return max(state.dueAt.Sub(now), 0)
}

// stretch returns how long a write with this limit may be deferred, which is longer if many objects have deferred writes.
func (m *objectStates) stretch(limit time.Duration) time.Duration {
	return max(limit, min(time.Duration(len(m.deferred))*time.Second/deferredWriteRate, maxWriteDelay))
}

// restoreDeferred replaces the status of obj with the status that an earlier run left without writing it, and returns
// the callbacks that wait for its write. If another client has changed the status in the meantime, restoreDeferred
// drops the deferred status and its callbacks instead. Changes of the metadata and the spec, such as a deletion, drop
// nothing.
func (m *objectStates) restoreDeferred(obj client.Object) []func() {
	m.mu.Lock()
	defer m.mu.Unlock()

	known, ok := m.deferred[obj.GetUID()]
	if !ok {
		return nil
	}

	current := statusOf(obj)
	isSameVersion := known.object.GetResourceVersion() == obj.GetResourceVersion()

	if !isSameVersion && !areEqual(current, statusOf(known.serverObject)) {
		delete(m.deferred, obj.GetUID()) // another client has written the status: this run observes the facts again

		return nil
	}

	// Only the status is restored. The cache may strip other fields of an object, and a live read does not. If such
	// a field differed, it would become part of the patch, and the API server would reject the patch.
	restored := statusOf(known.object.DeepCopyObject())
	if current.IsValid() && restored.IsValid() && current.Type() == restored.Type() {
		current.Set(restored)
	}

	return slices.Clone(known.onNextSave)
}

// areEqual reports whether both values exist and are equal.
func areEqual(a, b reflect.Value) bool {
	return a.IsValid() && b.IsValid() && equality.Semantic.DeepEqual(a.Interface(), b.Interface())
}

// statusOf returns the field Status of an object, or the zero Value if there is none.
func statusOf(obj any) reflect.Value {
	value := reflect.ValueOf(obj)
	if value.Kind() != reflect.Pointer || value.IsNil() || value.Elem().Kind() != reflect.Struct {
		return reflect.Value{}
	}

	return value.Elem().FieldByName("Status")
}

// dropDeferred drops the deferred object, because nothing is left to write.
func (m *objectStates) dropDeferred(obj client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()

	delete(m.deferred, obj.GetUID())
}

// deleteState deletes the state of an object that was deleted.
func (m *objectStates) deleteState(obj client.Object) {
	m.mu.Lock()
	defer m.mu.Unlock()

	delete(m.written, obj.GetUID())
	delete(m.deferred, obj.GetUID())
}

// sweep deletes the states that are older than stateTTL, at most once in stateTTL.
func (m *objectStates) sweep(now time.Time) {
	if m.written == nil {
		m.written, m.deferred, m.lastSweep = map[types.UID]lastWrite{}, map[types.UID]*deferredWrite{}, now
	}

	if now.Sub(m.lastSweep) <= stateTTL {
		return
	}

	m.lastSweep = now
	maps.DeleteFunc(m.written, func(_ types.UID, last lastWrite) bool { return now.Sub(last.at) > stateTTL })
	maps.DeleteFunc(m.deferred, func(_ types.UID, state *deferredWrite) bool { return now.Sub(state.dueAt) > stateTTL })
}
