// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hyperfleet/hyperfleet/hosts/nodecert"
)

// pendingCredentials holds the credentials that are not on their host yet, by host. They exist only
// in memory.
type pendingCredentials struct {
	mu    sync.Mutex
	hosts map[types.NamespacedName]*nodecert.PendingCredential
}

func (w *pendingCredentials) get(host types.NamespacedName) *nodecert.PendingCredential {
	w.mu.Lock()
	defer w.mu.Unlock()

	return w.hosts[host]
}

// set stores the credential of a host. A nil credential deletes the entry.
func (w *pendingCredentials) set(host types.NamespacedName, pending *nodecert.PendingCredential) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if pending == nil {
		delete(w.hosts, host)

		return
	}

	if w.hosts == nil {
		w.hosts = map[types.NamespacedName]*nodecert.PendingCredential{}
	}

	w.hosts[host] = pending
}
