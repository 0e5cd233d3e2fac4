// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// hypervisorSim is the simulated hypervisor.
type hypervisorSim struct {
	process *procrun.Process
}

// hypervisorState is what a hypervisor holds: VMs by id, each with a fingerprint of
// everything that must not change about it, and ISOs.
type hypervisorState struct {
	vms  map[int]vmState
	isos []string
}

type vmState struct {
	label       string
	fingerprint string
}

// since names the VMs and ISOs that were not there before, and counts the VMs that were
// there and are not as they were.
func (h hypervisorState) since(before hypervisorState) (vms, isos []string, touched int) {
	for id, vm := range h.vms {
		if _, had := before.vms[id]; !had {
			vms = append(vms, vm.label)
		}
	}

	for id, was := range before.vms {
		if now, ok := h.vms[id]; !ok || now.fingerprint != was.fingerprint {
			touched++
		}
	}

	for _, iso := range h.isos {
		if !slices.Contains(before.isos, iso) {
			isos = append(isos, iso)
		}
	}

	slices.Sort(vms)

	return vms, isos, touched
}

func (s *stack) startHypervisor(ctx context.Context) (string, error) {
	image, err := s.layOutImage(ctx)
	if err != nil {
		return "", err
	}

	return image, errors.New("no pvesim yet")
}

func (h *hypervisorSim) state(context.Context) (hypervisorState, error) {
	return hypervisorState{}, errors.New("no pvesim yet")
}

func (s *stack) measureHypervisor(context.Context, *Report) error { return nil }

var _ = fmt.Sprint
var _ = time.Now
