// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/hosts/nodecert"
)

// wanted are the credentials that are on their way, by host. They are in memory alone.
type wanted struct {
	mu    sync.Mutex
	hosts map[types.NamespacedName]*nodecert.Wanted
}

func (w *wanted) get(host types.NamespacedName) *nodecert.Wanted {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.hosts[host]
}

// set keeps a credential; nil forgets it.
func (w *wanted) set(host types.NamespacedName, to *nodecert.Wanted) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if to == nil {
		delete(w.hosts, host)

		return
	}

	if w.hosts == nil {
		w.hosts = map[types.NamespacedName]*nodecert.Wanted{}
	}

	w.hosts[host] = to
}
