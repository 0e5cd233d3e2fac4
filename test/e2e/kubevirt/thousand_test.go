// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// Feature: hyperfleet-operator, Property: a thousand machines on one pool never share an address
//
// Sixteen concurrent reconciles create the machines, and the operator is killed several times. The test checks
// each write of a status, in the order of the API server. KubeVirt is not simulated: VirtualMachines are only
// created. With -short there are two hundred machines.
func TestThousandMachines(t *testing.T) {
	w := newBareFixture(t)

	const kills, ipv6 = 4, 4096

	machines := 1000
	if testing.Short() {
		machines = 200
	}

	given := w.watchAddresses()

	pool := newNodePool("thousand", int32(machines), "192.168.0.0/16", "fd00::1000-fd00::1fff")
	w.create(pool)

	for i := range kills {
		w.eventually("more machines have addresses", func() bool { return given() > 2*(i+1)*machines/(kills+2) })
		w.kill()
		w.start()
	}

	w.eventually("all machines have addresses", func() bool { return given() == 2*machines })

	if n := len(w.listAddresses()); n != machines {
		t.Errorf("%d machines have addresses in their status", n)
	}

	// A killed operator leaves its Lease, which has to expire first. A stopped operator releases it.
	for _, end := range []func(){w.kill, w.stop} {
		end()

		logged := len(w.readLog())
		w.start()
		w.eventually("the restarted operator has read all addresses", func() bool {
			return w.readMetric("hyperfleet_ippool_free", `family="IPv6",network="`+w.namespace+`/machines",pool="`+w.namespace+`/thousand"`) == float64(ipv6-machines)
		})
		w.eventually("its controllers run", func() bool {
			return strings.Contains(w.readLog()[logged:], `msg="Starting workers" controller=kubevirtmachine`)
		})
	}

	if given() != 2*machines {
		t.Errorf("%d addresses were allocated, want %d: a restart has allocated new ones", given(), 2*machines)
	}
}

// watchAddresses fails the test if an address is written to the status of one machine while it is in the status of
// another. It returns a function that counts the allocated addresses.
func (w *fixture) watchAddresses() func() int {
	w.t.Helper()

	watcher, err := client.NewWithWatch(env.Config, client.Options{Scheme: env.Scheme})
	w.must(err)

	stream, err := watcher.Watch(context.Background(), &infrav1.KubevirtMachineList{}, client.InNamespace(w.namespace))
	w.must(err)

	owners := map[string]string{}
	done := make(chan struct{})

	go func() {
		defer close(done)

		for event := range stream.ResultChan() {
			m, ok := event.Object.(*infrav1.KubevirtMachine)
			if !ok || event.Type == watch.Deleted {
				continue
			}

			w.mu.Lock()
			for _, a := range m.Status.AllocatedBootstrapAddresses["eno101"] {
				if other := owners[a]; other != "" && other != m.Name {
					w.t.Errorf("%s was allocated to %s and to %s", a, other, m.Name)
				}

				owners[a] = m.Name
			}
			w.mu.Unlock()
		}
	}()

	w.t.Cleanup(func() {
		stream.Stop()
		<-done
	})

	return func() int {
		w.mu.Lock()
		defer w.mu.Unlock()

		return len(owners)
	}
}
