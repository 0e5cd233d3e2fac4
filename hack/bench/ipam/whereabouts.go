// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net"
	"strconv"
	"time"

	"github.com/k8snetworkplumbingwg/whereabouts/pkg/allocate"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/logging"
	"github.com/k8snetworkplumbingwg/whereabouts/pkg/types"
)

// whereabouts is the allocator of whereabouts with its list of reservations. whereabouts itself reads the list from the
// API server and writes it back for each address. This is not measured here.
type whereabouts struct {
	config       types.RangeConfiguration
	reservations []types.IPReservation
}

func newWhereabouts() *whereabouts {
	logging.SetLogStderr(false) // it would log two lines for each address
	logging.SetLogLevel("panic")

	first, subnet, _ := net.ParseCIDR(prefix)

	return &whereabouts{config: types.RangeConfiguration{Range: prefix, RangeStart: first.Mask(subnet.Mask)}}
}

func (w *whereabouts) acquire(count int) error {
	for range count {
		name := strconv.Itoa(len(w.reservations))

		_, reservations, err := allocate.AssignIP(w.config, w.reservations, name, "default/"+name, "net1")
		if err != nil {
			return err
		}

		w.reservations = reservations
	}

	return nil
}

func (w *whereabouts) measureAcquire() (time.Duration, error) {
	initial := len(w.reservations)
	start := time.Now()

	if err := w.acquire(acquireCount); err != nil {
		return 0, err
	}

	duration := time.Since(start)
	w.reservations = w.reservations[:initial]

	return duration / acquireCount, nil
}
