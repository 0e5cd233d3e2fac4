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

func (p *pendingCredentials) get(host types.NamespacedName) *nodecert.PendingCredential {
	p.mu.Lock()
	defer p.mu.Unlock()

	return p.hosts[host]
}

// set stores the credential of a host. A nil credential deletes the entry.
func (p *pendingCredentials) set(host types.NamespacedName, pending *nodecert.PendingCredential) {
	p.mu.Lock()
	defer p.mu.Unlock()

	if pending == nil {
		delete(p.hosts, host)

		return
	}

	if p.hosts == nil {
		p.hosts = map[types.NamespacedName]*nodecert.PendingCredential{}
	}

	p.hosts[host] = pending
}
