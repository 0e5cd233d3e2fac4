// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package vm_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/test/e2e/vm"
)

// A makespan that was not seen completely is an error.
func TestMakespan(t *testing.T) {
	t.Parallel()

	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	newMachine := func(begin, end time.Duration) vm.Machine {
		cloned := metav1.NewMicroTime(start.Add(begin))

		return vm.Machine{DeletedAt: start.Add(end), Times: v1alpha1.MachineTimes{CloneStarted: &cloned}}
	}
	neverCloned := vm.Machine{DeletedAt: start.Add(time.Hour)}
	machines := []vm.Machine{newMachine(2*time.Second, 5*time.Second), newMachine(time.Second, 3*time.Second), neverCloned}

	makespan, busy, err := vm.Makespan(machines, 2)
	if err != nil || makespan != 4*time.Second || busy != 5*time.Second {
		t.Errorf("want a makespan of 4s and 5s in sum, got %s and %s (%v)", makespan, busy, err)
	}

	if _, _, err := vm.Makespan(machines, 3); err == nil {
		t.Error("machines that were not seen are accepted")
	}

	if _, _, err := vm.Makespan(append(machines, vm.Machine{Name: "exists"}), 2); err == nil {
		t.Error("a machine that was not seen to be deleted is accepted")
	}
}
