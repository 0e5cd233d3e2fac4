// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package proxmox

import (
	"testing"
	"time"

	config "github.com/hyperfleet/hyperfleet/api/config/v1alpha1"
	"github.com/hyperfleet/hyperfleet/hypervisor"
)

// The watcher finds a VM that has stopped within 30 seconds: the age of its list, and the age of the status in the list.
func TestListsAreYoung(t *testing.T) {
	t.Parallel()

	for name, interval := range map[string]time.Duration{"provider": 0, "operator": config.Default().Runners.ListInterval} {
		p, err := newProvider(hypervisor.Config{Name: "lab", Endpoint: "https://pve.example:8006"},
			hypervisor.Options{OperatorUID: "operator", ListInterval: interval})
		if err != nil {
			t.Fatal(err)
		}

		idle := p.watcher.listMaxAge()
		p.watcher.tasks["a clone"] = &task{}
		busy := p.watcher.listMaxAge()

		if worst := max(idle, busy) + statusLag; idle <= 0 || busy <= 0 || worst > 30*time.Second {
			t.Errorf("default of the %s: a stopped VM is found within %s", name, worst)
		}
	}
}
