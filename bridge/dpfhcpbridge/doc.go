// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

// Package dpfhcpbridge reconciles DPFHCPBridges.
//
//	Pending ──► Provisioning ──► Ready
//	   │           │  ▲  ▲  ──────┘ │      a new release image, or unhealthy
//	   ▼           ▼  │             ▼
//	 Failed ◄──── Failed ◄──── Failed      a person has to act
//	   any ──► Deleting
//
// The steps and the deletion steps are listed in controller.go. Each step is in its own file. The steps
// before KeysCreated validate everything that a bridge depends on. They run on every reconcile, and if
// one of them fails, the later steps do not run. The controller reacts to events. It has an index for
// each kind of object that a bridge depends on (indexes.go), so that no event lists all bridges.
//
// The phase is computed from the conditions (phase.go). No code reads the phase.
package dpfhcpbridge
