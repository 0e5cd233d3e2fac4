// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt_test

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	infrav1 "github.com/hyperfleet/hyperfleet/api/infrastructure/v1alpha1"
)

// Feature: hyperfleet-operator, Property: a thousand machines on one pool never share an address
//
// The machines are made by sixteen concurrent passes, and the operator is killed again and
// again. Each write of a status is looked at, in the API server's order. Nobody plays
// KubeVirt here: a VirtualMachine is made and stays.
func TestThousandMachines(t *testing.T) {
	w := bareWorld(t)

	const machines, kills = 1000, 4

	given := w.watchAddresses()

	pool := nodePool("thousand", machines, "192.168.0.0/16", "fd00::1000-fd00::1fff")
	w.create(pool)

	for i := range kills {
		w.eventually("some more have addresses", func() bool { return given() > 2*(i+1)*machines/(kills+2) })
		w.kill()
		w.start()
	}

	w.eventually("all have addresses", func() bool { return given() == 2*machines })

	if n := len(w.addresses()); n != machines {
		t.Errorf("%d machines have addresses on record", n)
	}

	// One that was killed leaves a lease, which is waited for; one that was asked to end has given
	// it back.
	for _, one := range []struct {
		how string
		end func()
	}{{"killed", w.kill}, {"asked to end", w.stop}} {
		one.end()

		logged, began := len(w.logged()), time.Now()

		w.start()
		w.eventually("a new process has read all back", func() bool {
			return w.metric("hyperfleet_ippool_free", `family="IPv6",network="`+w.namespace+`/machines",pool="`+w.namespace+`/thousand"`) == 3096
		})
		w.eventually("its controllers work", func() bool {
			return strings.Contains(w.logged()[logged:], `msg="Starting workers" controller=kubevirtmachine`)
		})
		w.sayf("the one before it was %s: %s", one.how, phases(w.logged()[logged:], began))
	}

	if given() != 2*machines {
		t.Errorf("%d addresses were given, not %d: a restart gave a machine others", given(), 2*machines)
	}
}

// phases tells how long after its start a process led, had its addresses read back, and had its
// controllers of machines work, which is when the gate is open for them.
func phases(logged string, began time.Time) string {
	at := func(msg string) time.Duration {
		for line := range strings.Lines(logged) {
			stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")

			if when, err := time.Parse(time.RFC3339Nano, stamp); err == nil && strings.Contains(rest, msg) {
				return when.Sub(began).Round(10 * time.Millisecond)
			}
		}

		return -1
	}

	read, took := at("addresses in use are read back"), time.Duration(-1)
	if found := regexp.MustCompile(`read back".* took=(\S+)`).FindStringSubmatch(logged); found != nil {
		took, _ = time.ParseDuration(found[1])
	}

	return fmt.Sprintf("set up after %s, led after %s, read 1,000 machines' addresses back in %s, and its controllers of machines worked after %s",
		at(`msg="operator starts"`), (read - took).Round(10*time.Millisecond), took.Round(10*time.Millisecond),
		at(`msg="Starting workers" controller=kubevirtmachine`))
}

// watchAddresses fails the test when an address is written for one machine while another
// one has it on record. What it gives counts the addresses that are on record.
func (w *world) watchAddresses() func() int {
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
					w.t.Errorf("%s was given to %s and to %s", a, other, m.Name)
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
